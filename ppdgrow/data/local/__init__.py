"""A user's own data at a path: text, parquet, image folders and saved data sets, read as three splits.

What most files below a folder are decides what is read. Of text, byte order marks are dropped and line ends (CRLF, CR)
become newlines; a binary file is refused by name, run folders are passed over. Of images, grey, palette and 16-bit ones
become RGB, transparent pixels white; photos are turned upright, mixed sizes are scaled and cut to a square.

The shares of a split that is cut off are 5 % of the text, at line ends, and 10 % of the images. What is cut is first
put into an order as good as random, by a hash of the names.
"""
