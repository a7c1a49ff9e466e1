"""Growth joined with training: expansions, and trials that a rule judges; the commands `train` and `grow`.

May import training and all below.

The rules parent and twin train the twin too: on rejection it is the run, on acceptance it is what the decision cost.
What was not kept is charged to the ledger under `trials`, beside the cost of the run. Rule `always` trains none.

- `on_reject: {lower_lr: F, retries: N}` tries a rejected growth again from the same state, up to N times, with the rate
  of the new blocks times F, F^2, .. An accepted rate stays until the next growth.
- `candidates` are tried from the same state with the same budget. The best of those that the rule accepts, by its
  validation loss, is kept; where `lower_lr` is set, the best of the rejected is tried again. Choosing among many on one
  validation set is optimistic; the test split stays untouched.
- A growth whose plateau comes too late for its trial and those after it, or which does not fit the model because an
  earlier one was rejected, is passed over; the run says so and goes on.
"""
