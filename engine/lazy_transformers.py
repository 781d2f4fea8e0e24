"""The names that the engine uses of transformers, imported by one thread at a time.

transformers' modules import each other in circles. If two threads start with different ones, each
waits for the other, and Python lets one continue with a partly loaded module: "cannot import name
... from 'transformers'". Here the second thread waits until the first has imported everything.
Nothing else in the engine imports transformers, except for classes of single models.
"""

# ruff: noqa: F401 - names for other rooms

from __future__ import annotations

from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    __version__,
)
from transformers.activations import ACT2FN
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)
from transformers.initialization import no_init_weights
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.pytorch_utils import Conv1D
