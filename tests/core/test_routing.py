from llmgw.core.routing import ClientKey, Endpoint, EndpointState, RoutedModel


def test_an_endpoint_is_ready_until_somebody_says_otherwise() -> None:
    """A static endpoint has no agent that could report: it counts as ready, of epoch 0."""
    endpoint = Endpoint("legacy@http://[::1]:9000", "legacy", "http://[::1]:9000")
    assert endpoint.state == EndpointState.READY
    assert endpoint.epoch == 0


def test_a_key_without_models_may_use_all() -> None:
    assert ClientKey("team-a", "0" * 64).models == ()


def test_a_model_is_available_until_control_says_why_not() -> None:
    assert RoutedModel("tiny").unavailable is None
