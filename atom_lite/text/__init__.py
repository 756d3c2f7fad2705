"""Tokens <-> text: everything between HTTP strings and token ids, in the frontend process.

    tokenizer       encode, decode, special tokens of a checkpoint
    chat_template   messages -> prompt text
    output          token ids -> detokenizer -> stop strings -> text deltas, one pipeline for
                    streaming and for whole answers

Nothing here imports torch, transformers or xgrammar.
"""
