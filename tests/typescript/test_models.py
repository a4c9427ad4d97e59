from scripts import make_typescript


def test_the_types_of_the_client_are_up_to_date():
    assert make_typescript.TARGET.read_text() == make_typescript.text(), "run `make generate`"
