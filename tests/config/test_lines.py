from llmgw.config.lines import key_lines, line_of

TEXT = '''\
state_dir = "x"
[control]
listen = "a"
heartbeat.extra = 1
[[models]]
name = "a"   # name = "c"
[models.profile]
args = [
  "--x",
]
[[models]]
  name = "b"
  [models."profile"]
  model = """
  gpus = 3
  """
  gpus = 4
[[models.endpoints]]
url = "u"
[[models.endpoints]]
'url' = "v"
["odd name"]
'''


def test_each_key_is_found_on_its_line() -> None:
    lines = key_lines(TEXT)
    expected = {
        ("state_dir",): 1,
        ("control",): 2,
        ("control", "listen"): 3,
        ("control", "heartbeat", "extra"): 4,
        ("models", 0): 5,
        ("models", 0, "name"): 6,
        ("models", 0, "profile"): 7,
        ("models", 0, "profile", "args"): 8,
        ("models", 1): 11,
        ("models", 1, "name"): 12,
        ("models", 1, "profile", "gpus"): 17,
        ("models", 1, "endpoints", 0, "url"): 19,
        ("models", 1, "endpoints", 1, "url"): 21,
        ("odd name",): 22,
    }
    assert {path: lines.get(path) for path in expected} == expected


def test_what_is_not_written_gets_the_line_of_its_table() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("models", 1, "profile", "engine")) == 13
    assert line_of(lines, ("models", 0, "profile", "args", 0)) == 8
    assert line_of(lines, ("router", "listen")) is None
    assert line_of(lines, ()) is None
