"""What the settings of other engines mean here.

Each function takes the settings as that engine names them and gives the keyword arguments of
``SamplingParams`` with which the same law is drawn from; the text ends at the model's own end tokens. What
the engine would use where a setting is missing is said too, so that a model's own defaults change nothing.
``None`` is as good as missing. Each raises one ``ParameterError`` that names every setting without an equal
here, unless it has the value at which that engine's setting does nothing.
"""

from unspool.translation.llama_cpp import from_llama_cpp
from unspool.translation.openai import from_openai
from unspool.translation.transformers import from_transformers
from unspool.translation.vllm import from_vllm

__all__ = ["from_llama_cpp", "from_openai", "from_transformers", "from_vllm"]
