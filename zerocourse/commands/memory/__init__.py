"""`zerocourse memory`: how many bytes a rank holds and sends, what fits where, and what generation keeps."""
