"""Small models: of transformers by their configurations, and some of nobody's."""
import torch
import transformers

from fsdp_plan.tracing import hub

SEQUENCES, TOKENS = 3, 64
SIZES = dict(vocab_size=512, hidden_size=128, intermediate_size=320, num_hidden_layers=3, num_attention_heads=8,
             num_key_value_heads=2, max_position_embeddings=512, bos_token_id=None, eos_token_id=None,
             pad_token_id=None, attn_implementation="eager")
SMALL = dict(SIZES, vocab_size=64)
GPT2 = dict(vocab_size=64, n_embd=128, n_head=8, n_layer=3, n_positions=128, bos_token_id=None, eos_token_id=None,
            attn_implementation="eager")
CONFIGS = {
    "llama": SIZES,
    "qwen3": dict(SIZES, vocab_size=64, head_dim=16, tie_word_embeddings=True),
    "phi3": dict(SIZES, vocab_size=64),
    "gemma3_text": dict(SIZES, vocab_size=64, head_dim=16, sliding_window=32),
    "gpt2": GPT2,
    "opt": dict(vocab_size=64, hidden_size=128, ffn_dim=320, num_hidden_layers=3, num_attention_heads=8,
                word_embed_proj_dim=128, max_position_embeddings=128, bos_token_id=None, eos_token_id=None,
                pad_token_id=None, attn_implementation="eager"),
    "mixtral": dict(SIZES, vocab_size=64, num_local_experts=4),
    "t5": dict(vocab_size=64, d_model=128, d_ff=320, num_layers=3, num_heads=8, d_kv=16, decoder_start_token_id=0,
               pad_token_id=0, attn_implementation="eager"),
    "vit": dict(hidden_size=96, num_hidden_layers=3, num_attention_heads=3, intermediate_size=192, image_size=64,
                attn_implementation="eager"),
    "qwen3_moe": dict(SMALL, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64),
    "gpt_oss": dict(SMALL, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=32),
    "qwen3_next": dict(SMALL, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
                       shared_expert_intermediate_size=64, num_hidden_layers=4, linear_num_value_heads=4,
                       linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16),
    "deepseek_v3": dict(SMALL, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16,
                        n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=64,
                        first_k_dense_replace=1, num_key_value_heads=8),
    "whisper": dict(vocab_size=64, num_mel_bins=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                    decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, d_model=64,
                    max_source_positions=48, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                    decoder_start_token_id=1, attn_implementation="eager"),
    "mamba2": dict(vocab_size=64, hidden_size=128, num_hidden_layers=3, num_heads=8, head_dim=32, n_groups=1,
                   state_size=16, chunk_size=32, bos_token_id=None, eos_token_id=None, pad_token_id=None),
}
OWN = ("own", "dit", "frozen tower")


class Cubed(torch.autograd.Function):
    """Keeps one tensor by save_for_backward and one as an attribute."""

    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(x)
        ctx.square = square
        return square * x

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * 3 * ctx.square + 0 * x


class Own(torch.nn.Module):
    """Nobody's model: a convolution, a module that runs twice, a tied weight, a buffer, a frozen layer."""

    def __init__(self):
        super().__init__()
        self.look_up = torch.nn.Embedding(256, 48)
        self.convolution = torch.nn.Conv1d(48, 96, 3, padding=1)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(96, 96) for _ in range(4))
        self.norm = torch.nn.LayerNorm(96)
        self.down = torch.nn.Linear(96, 48, bias=False)
        self.head = torch.nn.Linear(48, 256, bias=False)
        self.head.weight = self.look_up.weight
        self.blocks[1].requires_grad_(False)
        self.register_buffer("scale", torch.ones(96))

    def forward(self, ids):
        x = self.convolution(self.look_up(ids).transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            x = x + Cubed.apply(self.norm(block(x) * self.scale.to(x.dtype)))
        return self.head(torch.tanh(self.down(x)))


def mean_loss(logits, inputs):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), inputs[0].flatten())


class Modulated(torch.nn.Module):
    """A block of a diffusion transformer: its norms are scaled and shifted by what the step of diffusion says."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = torch.nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = torch.nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(approximate="tanh"),
                                       torch.nn.Linear(4 * width, width))
        self.modulation = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Linear(width, 6 * width))

    def forward(self, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).unsqueeze(1).chunk(6, dim=-1)
        y = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(y).chunk(3, dim=-1))
        scores = torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, -1)
        x = x + gate1 * self.out((scores @ v).transpose(1, 2).flatten(2))
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Dit(torch.nn.Module):
    """Latents and a step of diffusion in, the noise out."""

    def __init__(self, width=96, heads=4, side=8, patch=2, channels=4):
        super().__init__()
        self.patch, self.width = patch, width
        self.patches = torch.nn.Conv2d(channels, width, patch, stride=patch)
        self.places = torch.nn.Parameter(torch.zeros(1, (side // patch) ** 2, width))
        self.step = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.SiLU(), torch.nn.Linear(width, width))
        self.blocks = torch.nn.ModuleList(Modulated(width, heads) for _ in range(3))
        self.norm = torch.nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.head = torch.nn.Linear(width, patch * patch * channels)

    def forward(self, latents, steps):
        x = self.patches(latents).flatten(2).transpose(1, 2) + self.places
        condition = self.step(steps)
        for block in self.blocks:
            x = block(x, condition)
        return self.head(self.norm(x))


def noise_loss(noise, inputs):
    return (noise.float() ** 2).mean()


class Tower(torch.nn.Module):
    """A frozen encoder of pictures in front of a decoder that is trained: backward stops between the two."""

    def __init__(self, width=96):
        super().__init__()
        config = transformers.AutoConfig.for_model("vit", **CONFIGS["vit"])
        self.tower = transformers.AutoModel.from_config(config, add_pooling_layer=False).requires_grad_(False)
        self.bridge = torch.nn.Linear(config.hidden_size, width)
        self.words = torch.nn.Embedding(64, width)
        self.blocks = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(
            width, 4, 192, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2))
        self.head = torch.nn.Linear(width, 64, bias=False)

    def forward(self, pictures, ids):
        seen = self.bridge(self.tower(pixel_values=pictures).last_hidden_state)
        x = torch.cat([seen, self.words(ids)], dim=1)
        for block in self.blocks:
            x = x + block.linear2(torch.relu(block.linear1(block.norm1(x))))
        return self.head(x[:, -ids.shape[1]:])


def tower_loss(logits, inputs):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), inputs[1].flatten())


def case(name):
    """(model, inputs of one sequence, loss)"""
    torch.manual_seed(0)
    if name == "own":
        return Own(), [torch.zeros(1, TOKENS, dtype=torch.int64)], mean_loss
    if name == "dit":
        return Dit(), [torch.zeros(1, 4, 8, 8), torch.zeros(1, 96)], noise_loss
    if name == "frozen tower":
        return Tower(), [torch.zeros(1, 3, 64, 64), torch.zeros(1, TOKENS, dtype=torch.int64)], tower_loss
    kind = name.removesuffix(" with adapters")
    config = hub.settle(transformers.AutoConfig.for_model(kind, **CONFIGS[kind]))
    model = hub.factory(config)()
    if kind != name:
        from adapters import adapted        # needs peft
        model = adapted(model)
    return model, hub.batch_of(config, TOKENS), None
