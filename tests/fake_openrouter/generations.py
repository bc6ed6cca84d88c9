"""The record that OpenRouter keeps of a generation, as `GET /generation?id=` gives it."""

from typing import Any

COST_USD = 0.00003452
"""That of the cancelled record that was seen in the wild; so are the tokens below."""


def record(generation_id: str, *, streamed: bool, cancelled: bool) -> dict[str, Any]:
    """The record of a generation that ended: by itself, or because its caller left."""
    return {
        "id": generation_id,
        "upstream_id": "chatcmpl-fake",
        "api_type": "completions",
        "app_id": None,
        "cache_discount": None,
        "cancelled": cancelled,
        "created_at": "2026-10-02T10:00:00.000Z",
        "data_region": "global",
        "external_user": None,
        "finish_reason": None if cancelled else "stop",
        "native_finish_reason": None if cancelled else "stop",
        "generation_time": 2940,
        "http_referer": None,
        "is_byok": False,
        "latency": 1016,
        "model": "openai/gpt-4o-mini",
        "moderation_latency": None,
        "native_tokens_cached": 0,
        "native_tokens_completion": 98,
        "native_tokens_completion_images": None,
        "native_tokens_prompt": 64,
        "native_tokens_reasoning": 0,
        "num_fetches": None,
        "num_input_audio_prompt": None,
        "num_media_completion": None,
        "num_media_prompt": None,
        "num_search_results": None,
        "origin": "",
        "preset_id": None,
        "provider_name": "OpenAI",
        "provider_responses": [
            {"provider_name": "OpenAI", "status": 200, "latency": 420, "is_byok": False}
        ],
        "router": None,
        "service_tier": None,
        "streamed": streamed,
        "tokens_completion": 116,
        "tokens_prompt": 65,
        "total_cost": COST_USD,
        "upstream_inference_cost": 0,
        "usage": COST_USD,
        "user_agent": None,
        "web_search_engine": None,
        "workspace_id": None,
    }
