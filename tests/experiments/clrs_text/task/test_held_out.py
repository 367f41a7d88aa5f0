from __future__ import annotations

from collections import Counter

from experiments.clrs_text.task import example, examples, held_out, shared_inputs


def test_a_test_set_has_no_question_twice_and_nothing_of_training() -> None:
    names, lengths = ["minimum", "bfs", "bubble_sort", "quicksort"], [4, 8]
    drawn = held_out(names, lengths, seed=0, each=20)
    questions = [one.question for one in drawn.examples]
    assert len(set(questions)) == len(questions) == 160
    assert set(Counter((e.algorithm, e.length) for e in drawn.examples).values()) == {20}
    train = [e.question for e in examples(names, lengths, seed=0, count=800)]
    assert not shared_inputs(train, questions)
    assert drawn.shared == 0
    assert drawn.fewer == {}
    assert drawn == held_out(names, lengths, seed=0, each=20, training=train)


def test_where_inputs_are_few_there_are_fewer_and_it_is_said() -> None:
    drawn = held_out(["kmp_matcher", "minimum"], 4, seed=1, each=50)
    found = Counter(one.algorithm for one in drawn.examples)
    assert drawn.fewer == {("kmp_matcher", 4): found["kmp_matcher"]}
    assert 0 < found["kmp_matcher"] < 50 == found["minimum"]
    assert drawn.repeated >= 200
    assert f"kmp_matcher at 4 has {found['kmp_matcher']} of 50" in str(drawn)


def test_what_training_has_from_elsewhere_is_left_out_and_drawn_anew() -> None:
    plain = held_out("quicksort", 4, seed=2, each=10)
    # The inputs of two of them, in questions about another algorithm.
    taken = [one.question.replace("quicksort", "heapsort") for one in plain.examples[:2]]
    drawn = held_out("quicksort", 4, seed=2, each=10, training=taken)
    assert drawn.shared == 2
    assert drawn.examples[:8] == plain.examples[2:]
    assert len(drawn.examples) == 10
    assert not shared_inputs(taken, [one.question for one in drawn.examples])


def test_traces_change_no_question_of_a_test_set() -> None:
    hinted = held_out("bfs", 4, seed=3, each=15, use_hints=True)
    for one in hinted.examples:
        plain = example("bfs", 4, seed=3, index=one.index, split="test")
        assert plain.target == one.target
