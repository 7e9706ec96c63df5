"""From a verified file to a bundle that proves itself where it is used."""
