import torch

from atom_lite.messages import SamplingParams
from atom_lite.worker.sampler import Draw, Sampler
from atom_lite.worker.scripted import SCRIPTED_LOGIT, scripted_logits
from atom_lite.worker.sequence_table import MirroredSequence

VOCAB = 100
CPU = torch.device("cpu")


def sequence(script):
    return MirroredSequence(
        sequence_id=1,
        epoch=0,
        row=0,
        num_prompt_tokens=3,
        sampling=SamplingParams(max_tokens=10),
        script=script,
        num_tokens=3,
    )


def logits_of(scripts, indices, eos_token_ids=(2, 9)):
    return scripted_logits(
        [sequence(script) for script in scripts],
        indices,
        vocab_size=VOCAB,
        eos_token_ids=eos_token_ids,
        device=CPU,
    )


def test_script_is_followed_and_then_ends_with_eos():
    logits = logits_of([[40, 41], [40, 41], [40, 41], None, []], [0, 1, 2, 0, 5])
    assert logits.argmax(-1).tolist() == [40, 41, 2, 2, 2]
    assert logits.max() == SCRIPTED_LOGIT
    assert (logits != 0).sum() == 5


def test_id_outside_the_vocabulary_ends_the_script():
    assert logits_of([[VOCAB], [-1]], [0, 0]).argmax(-1).tolist() == [2, 2]


def test_vocabulary_without_eos_ends_on_its_last_id():
    assert logits_of([None], [0], eos_token_ids=()).argmax(-1).tolist() == [VOCAB - 1]


def test_masks_apply_after_the_script():
    sampler = Sampler(vocab_size=VOCAB, eos_token_ids=[2])
    sampling = SamplingParams(max_tokens=10, min_tokens=5, temperature=1.0)
    token = sampler.sample(logits_of([None], [0]), [Draw(sampling, 0)])[0]
    assert token != 2
