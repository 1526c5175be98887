"""What a cell shows beside pictures: sentences, tables, sources; and the form in which all of it is shown."""
