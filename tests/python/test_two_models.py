"""trireme.parallelize of a module that holds two models of transformers, a student and its teacher: the student is shared."""

import pytest
import torch
import trireme
from test_parallelize import compare, gradients, make_batch, make_model


class Distillation(torch.nn.Module):
    def __init__(self, first, second):
        super().__init__()
        models = {"student": make_model("llama"), "teacher": make_model("qwen2").requires_grad_(False)}
        for name in (first, second):
            setattr(self, name, models[name])

    def forward(self, input_ids):
        with torch.no_grad():
            taught = self.teacher(input_ids=input_ids, use_cache=False).logits
        return (self.student(input_ids=input_ids, use_cache=False).logits - 0.5 * taught).square().mean()


def of_the_loss(model, batch):
    model.zero_grad()
    loss = model(batch["input_ids"])
    loss.backward()
    return loss.item(), gradients(model)


def test_a_frozen_teacher_runs_as_it_is_beside_whole_batches(ranks):
    ranks.run(run_distillation, 2)


def run_distillation(group):
    batch = make_batch("plain", "llama")
    for order in (("student", "teacher"), ("teacher", "student")):
        model = Distillation(*order)
        truth = of_the_loss(model, batch)
        with trireme.parallelize(model, group, whole_batches=True):
            assert model.teacher.config._attn_implementation == "eager" != model.student.config._attn_implementation
            loss, _ = of_the_loss(model, batch)
        trireme.sum_gradients(model.parameters(), group)
        compare(truth, (loss, gradients(model)))


def test_a_second_model_is_refused_beside_shards_or_where_it_is_trained(ranks):
    ranks.run(run_refused, 2)


def run_refused(group):
    model = Distillation("teacher", "student")
    with pytest.raises(trireme.ConfigError, match=r"got teacher \(Qwen2ForCausalLM\) beside the LlamaForCausalLM.*shard alone"):
        with trireme.parallelize(model, group):
            pass
    model.teacher.requires_grad_(True)
    with pytest.raises(trireme.ConfigError, match=r"got student \(LlamaForCausalLM\) beside the Qwen2ForCausalLM.*are trained"):
        with trireme.parallelize(model, group, whole_batches=True, averaged_over=2):
            pass
    with trireme.parallelize(model.student, group), trireme.parallelize(model.teacher, group):
        pass
