"""nano: its corpus, tokenizer, training, export and measurement."""
