"""Words that WordPiece never reads do not take part in the training of a vocabulary."""

from drkit.data.vocabulary import train_wordpiece

PLAIN = ["a few short words and others", "words of a few short texts", "https://example.org/a/few_short/words"] * 5


def vocabulary(texts, folder):
    return train_wordpiece(iter(texts), folder, size=200).get_vocab()


def test_a_word_of_megabytes_changes_nothing_and_takes_no_time(tmp_path):
    encoded = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0NTY3ODk" * 120_000
    assert vocabulary([*PLAIN, f"{encoded}", f"short {encoded} words"], tmp_path / "b") == vocabulary(
        [*PLAIN, "short words"], tmp_path / "a"
    )


def test_long_texts_without_spaces_are_read_where_the_tokenizer_splits_them(tmp_path):
    ideographs, path = "\u6f22\u5b57\u4eee\u540d" * 50, "/".join(["segment"] * 50) + "_" + "_".join(["snake"] * 50)
    found = vocabulary([*PLAIN, ideographs, path], tmp_path)
    assert {"\u6f22", "segment", "snake"} <= found.keys()
