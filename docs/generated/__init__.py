"""Which parts of the pages are made from the code?

A page names a module of this package where its text belongs: ``<!-- generated: command_line -->``. Its function
``markdown`` gives that text, and gets the words behind the name.
"""
