from tests.parts.conftest import tokenizer as tokenizer
