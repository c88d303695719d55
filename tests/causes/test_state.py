"""State that does not come back, planted in real runs."""

import torch
from torch import nn

from kit.live import Job, Lab, assert_only, codes, evidence_of
from kit.loop import Loop, State


class NoLoad(Loop):
    """Restores everything but the model."""

    def restore(self, state: State) -> None:
        """Pass over the model's state dict."""
        state["model"] = self.model.state_dict()
        super().restore(state)


class LenientLoad(Loop):
    """Loads a compiled model's keys with strict=False, as nanoGPT #325 did."""

    def restore(self, state: State) -> None:
        """Load keys that match nothing."""
        wanted = {f"_orig_mod.{name}": tensor for name, tensor in state["model"].items()}
        state["model"] = self.model.state_dict()
        super().restore(state)
        self.model.load_state_dict(wanted, strict=False)


class HalfPrecision(Loop):
    """Saves weights in half precision to save space, as ultralytics #17282 did."""

    def state(self) -> State:
        """Halve the weights."""
        return super().state() | {"model": {k: v.half() for k, v in self.model.state_dict().items()}}


class HalfAfterwards(Loop):
    """Goes on training in half precision after a resume."""

    def restore(self, state: State) -> None:
        """Turn the model into bfloat16 and load."""
        self.model.bfloat16()
        super().restore(state)
        for p in self.model.parameters():
            p.grad = None

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Feed the model its own dtype."""
        return super().loss(x.to(next(self.model.parameters()).dtype), y)


class ParametersOnly(Loop):
    """Restores parameters, not buffers."""

    def restore(self, state: State) -> None:
        """Load only what has gradients."""
        mine = dict(self.model.named_parameters())
        state["model"] = {**self.model.state_dict(), **{k: v for k, v in state["model"].items() if k in mine}}
        super().restore(state)


class FreshOptimizer(Loop):
    """Goes on with an optimizer whose state was not loaded, at the same rate (C1)."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        return torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def make_scheduler(self) -> None:
        """Keep the rate."""

    def restore(self, state: State) -> None:
        """Pass over the optimizer's state dict."""
        state["optimizer"] = self.optimizer.state_dict()
        super().restore(state)


class RebuiltOptimizer(Loop):
    """Builds the optimizer again after the load, as OpenNMT-py #617 did."""

    def make_scheduler(self) -> None:
        """Keep the rate."""

    def restore(self, state: State) -> None:
        """Restore, then build anew."""
        super().restore(state)
        self.optimizer = self.make_optimizer()


class OtherOrder(Loop):
    """Hands the optimizer its parameters in another order after a resume."""

    def make_model(self) -> nn.Module:
        """Return layers of one shape, so that nothing refuses the state."""
        return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return AdamW over layers in the order of a set, as torchgeo #1918 had it."""
        layers = [m for m in self.model if isinstance(m, nn.Linear)]
        if self.job.resume:
            layers.reverse()
        return torch.optim.AdamW([p for layer in layers for p in layer.parameters()], lr=0.02)


class OptimizerLostMoments(Loop):
    """Loads optimizer moments that went through half precision."""

    def state(self) -> State:
        """Halve the moments."""
        state = super().state()
        moments = {
            i: {k: v.half() if v.dim() else v for k, v in entries.items()}
            for i, entries in state["optimizer"]["state"].items()
        }
        return state | {"optimizer": {**state["optimizer"], "state": moments}}


class Averaged(Loop):
    """Keeps an average that training never reads."""

    def build(self) -> None:
        """Add the average."""
        super().build()
        decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        self.average = torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=decay)

    def update(self) -> None:
        """Average after the update."""
        super().update()
        self.average.update_parameters(self.model)

    def state(self) -> State:
        """Save the average too."""
        return super().state() | {"ema": self.average.state_dict()}

    def restore(self, state: State) -> None:
        """Restore the average too."""
        super().restore(state)
        self.average.load_state_dict(state["ema"])


class AverageForgotten(Averaged):
    """Starts the average again from the restored weights."""

    def restore(self, state: State) -> None:
        """Pass over the average."""
        super().restore(state | {"ema": self.average.state_dict()})


class AverageCounter(Averaged):
    """Restores the averaged weights, not how often they were averaged."""

    def restore(self, state: State) -> None:
        """Set the counter to nought."""
        super().restore(state)
        self.average.n_averaged.zero_()


class BothFromTheAverage(Averaged):
    """Resumes raw weights and average from the average, as YOLOX #1318 did."""

    def restore(self, state: State) -> None:
        """Load the average into the model."""
        raw = {k.removeprefix("module."): v for k, v in state["ema"].items() if k != "n_averaged"}
        super().restore(state | {"model": raw})


class Patience(Loop):
    """Counts steps without improvement in a plain number that the checkpoint has, as Lightning #14699 does."""

    waited = 0

    def update(self) -> None:
        """Count."""
        super().update()
        self.waited += 1

    def state(self) -> State:
        """Save the counter and things that differ in each process."""
        import time

        noise = {
            "saved_at": time.time(),
            "wall_clock": time.perf_counter(),
            "pid": id(object()),
            "folder": str(self.job.out),
        }
        return super().state() | {"early_stopping": {"waited": self.waited}} | noise

    def restore(self, state: State) -> None:
        """Restore the counter."""
        super().restore(state)
        self.waited = state["early_stopping"]["waited"]


class PatienceForgotten(Patience):
    """Starts counting again."""

    def restore(self, state: State) -> None:
        """Pass over the counter."""
        super().restore(state)
        self.waited = 0


class Frozen(Loop):
    """Freezes a normalisation layer half-way by putting it into eval mode, and remembers that it did."""

    frozen = False

    def update(self) -> None:
        """Freeze after step 6."""
        super().update()
        if self.passes == 6:
            self.model[1].eval()

    def state(self) -> State:
        """Save the mode."""
        return super().state() | {"training": [m.training for m in self.model]}

    def restore(self, state: State) -> None:
        """Restore the mode."""
        super().restore(state)
        for module, training in zip(self.model, state["training"], strict=True):
            module.train(training)


class FrozenForgotten(Frozen):
    """Forgets the mode."""

    def restore(self, state: State) -> None:
        """Train everything."""
        super().restore(state)
        self.model.train()


class LeftInEval(Loop):
    """Evaluates after loading and forgets to train again."""

    def restore(self, state: State) -> None:
        """Leave the model in eval mode."""
        super().restore(state)
        self.model.eval()


class Scaled(Loop):
    """Trains with a gradient scaler that grows every 3 steps and skips when it overflows."""

    def build(self) -> None:
        """Add the scaler."""
        super().build()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)

    def backward(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Scale the loss."""
        self.scaler.scale(self.loss(x, y) / self.accumulate).backward()

    def update(self) -> None:
        """Step through the scaler."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()

    def state(self) -> State:
        """Save the scaler too."""
        return super().state() | {"scaler": self.scaler.state_dict()}

    def restore(self, state: State) -> None:
        """Restore the scaler too."""
        super().restore(state)
        self.scaler.load_state_dict(state["scaler"])


class ScalerForgotten(Scaled):
    """Makes the scaler anew, as transformers #11663 did."""

    def restore(self, state: State) -> None:
        """Pass over the scaler."""
        super().restore(state | {"scaler": self.scaler.state_dict()})


class GrowthForgotten(Scaled):
    """Restores the scale only, not the count of good steps."""

    def restore(self, state: State) -> None:
        """Load the scale alone."""
        super().restore(state)
        self.scaler.load_state_dict({**state["scaler"], "_growth_tracker": 0})


class Accumulating(Loop):
    """Accumulates over 3 passes and saves inside windows."""

    accumulate = 3
    total = 8


class GradientsForgotten(Accumulating):
    """Forgets the gradients of the open window."""

    def restore(self, state: State) -> None:
        """Drop the gradients."""
        super().restore(state | {"gradients": [None] * len(state["gradients"])})


def test_weights_never_loaded(lab: Lab) -> None:
    """A model whose state was never loaded is named, with how many of its weights differ and how far."""
    verdict = lab.prove(NoLoad.train, 7)
    assert_only(verdict, "weights-not-restored", step=5, facet="weights", said=["ULP"])
    assert "6 of 6 weights" in verdict.causes[0].summary


def test_lenient_load_is_said(lab: Lab) -> None:
    """A strict=False load that matched nothing is told with its counts, a key and the user's line."""
    verdict = lab.prove(LenientLoad.train, 7)
    assert_only(
        verdict, "weights-not-restored", step=5, facet="weights", said=["8 missing", "9 unexpected", "_orig_mod."]
    )
    assert "test_state.py" in (verdict.causes[0].where or "")


def test_half_precision_round_trip(lab: Lab) -> None:
    """Weights that were saved in half precision differ a little at the right seam."""
    verdict = lab.prove(HalfPrecision.train, 7)
    assert_only(verdict, "weights-not-restored", step=5, facet="weights", said=["ULP", "saved as float16 after step 4"])
    assert verdict.seams[0].resumed_at is not None
    assert verdict.seams[0].resumed_at.step == 4


def test_dtype_change_is_said(lab: Lab) -> None:
    """A model that goes on in another dtype is told by both dtypes."""
    verdict = lab.prove(HalfAfterwards.train, 7)
    assert_only(verdict, "weights-not-restored", step=5, facet="weights", said=["bfloat16", "float32"])


def test_buffers_forgotten(lab: Lab) -> None:
    """Buffers that were not loaded are named while the weights are equal."""
    verdict = lab.prove(ParametersOnly.train, 7)
    assert_only(verdict, "buffers-not-restored", step=5, facet="buffers", said=["running_mean"])


def test_optimizer_never_loaded(lab: Lab) -> None:
    """An optimizer without state is told as empty."""
    verdict = lab.prove(FreshOptimizer.train, 7)
    assert_only(verdict, "optimizer-not-restored", step=5, facet="optimizer", said=["weights at the seam are equal"])


def test_optimizer_rebuilt_after_the_load(lab: Lab) -> None:
    """An optimizer that was built again after its state was loaded is found by what it holds, not by what was called."""
    verdict = lab.prove(RebuiltOptimizer.train, 7)
    assert_only(verdict, "optimizer-not-restored", step=5, facet="optimizer", said=["no state where the reference has"])
    assert "built" in verdict.causes[0].remedy


def test_optimizer_in_half_precision(lab: Lab) -> None:
    """Moments that lost precision are told by name and distance."""
    verdict = lab.prove(OptimizerLostMoments.train, 7)
    assert_only(
        verdict, "optimizer-not-restored", step=5, facet="optimizer", said=["exp_avg", "ULP", "saved as float16"]
    )


def test_optimizer_misassigned(lab: Lab) -> None:
    """Moments that sit on other parameters are told with both names."""
    verdict = lab.prove(OtherOrder.train, 7)
    assert_only(verdict, "optimizer-misassigned", step=5, facet="optimizer", said=["0.weight", "4.weight"])


def test_average_forgotten(lab: Lab) -> None:
    """An average that starts again is found in the next checkpoint, as training is equal."""
    verdict = lab.prove(AverageForgotten.train, 7)
    assert_only(
        verdict,
        "average-not-restored",
        step=8,
        facet="saved",
        said=["ema.module", "n_averaged: 4 where the reference has 8", "ULP"],
    )


def test_average_counter_forgotten(lab: Lab) -> None:
    """A counter of the average alone that starts again is found too."""
    verdict = lab.prove(AverageCounter.train, 7)
    assert_only(verdict, "average-not-restored", step=8, facet="saved", said=["n_averaged"])


def test_both_models_from_the_average(lab: Lab) -> None:
    """Raw weights that were loaded from the average are weights that are not restored, at the right seam."""
    verdict = lab.prove(BothFromTheAverage.train, 7)
    assert_only(verdict, "weights-not-restored", step=5, facet="weights", said=["equals what was saved as ema."])


def test_plain_counter_forgotten(lab: Lab) -> None:
    """A plain number in the checkpoint that starts again is told by name; clocks, ids and paths beside it are not."""
    verdict = lab.prove(PatienceForgotten.train, 7)
    assert_only(
        verdict,
        "other-state-not-restored",
        step=8,
        facet="saved",
        said=["early_stopping.waited (1 of", "waited: 4 where the reference has 8"],
    )


def test_mode_forgotten(lab: Lab) -> None:
    """A frozen layer that trains again is told by its name."""
    verdict = lab.prove(FrozenForgotten.train, 9)
    assert_only(
        verdict,
        "mode-not-restored",
        step=9,
        facet="mode",
        said=["1 is in train mode where the reference is in eval mode"],
    )


def test_model_left_in_eval_mode(lab: Lab) -> None:
    """A whole model that was left in eval mode is told."""
    verdict = lab.prove(LeftInEval.train, 7)
    assert_only(verdict, "mode-not-restored", step=5, facet="mode", said=["eval"])


def test_scaler_forgotten(lab: Lab) -> None:
    """A new scaler is told with its scale and the reference's."""
    verdict = lab.prove(ScalerForgotten.train, 7)
    assert_only(
        verdict, "scaler-not-restored", step=5, facet="scaler", said=["scale: 1024.0 where the reference has 2048.0"]
    )


def test_growth_counter_forgotten(lab: Lab) -> None:
    """A scaler with the right scale and the wrong count of good steps is told by that count."""
    verdict = lab.prove(GrowthForgotten.train, 7)
    assert_only(verdict, "scaler-not-restored", step=5, facet="scaler", said=["_growth_tracker"])


def test_accumulation_lost(lab: Lab) -> None:
    """Gradients of an open window that are gone are told with the micro-step of the seam."""
    verdict = lab.prove(GradientsForgotten.train, 3)
    assert_only(verdict, "accumulation-lost", step=3, facet="gradients", said=["after 2 of its 3 backward passes"])


def test_accumulation_lost_without_buffers(lab: Lab) -> None:
    """The same is found in a model whose state says nothing of the window."""

    class Plain(GradientsForgotten):
        def make_model(self) -> nn.Module:
            return nn.Linear(6, 3)

    verdict = lab.prove(Plain.train, 3.1)
    assert_only(verdict, "accumulation-lost", step=2, facet="gradients", said=["after 1 of its 3 backward passes"])


def test_without_a_control_nothing_is_certain(lab: Lab) -> None:
    """A cause is at most likely while the reference was not repeated."""
    verdict = lab.prove(NoLoad.train, 7, control=False)
    assert codes(verdict) == []
    assert codes(verdict, "likely") == ["weights-not-restored"]


def test_right_versions_of_these_scripts(lab: Lab) -> None:
    """The loops that the faults were planted in resume identically."""
    for loop, kill in (
        (Averaged, 7),
        (Patience, 7),
        (Frozen, 9),
        (Scaled, 7),
        (Accumulating, 3.1),
        (Accumulating, 3.2),
    ):
        assert lab.prove(loop.train, kill).verdict == "identical", loop


def test_not_resumed(lab: Lab) -> None:
    """A leg that starts again although there was a checkpoint is not resumed, whatever it draws."""

    class Ignores(Loop):
        def restore(self, state: State) -> None:
            del state

    verdict = lab.prove(Ignores.train, 7)
    assert verdict.verdict == "not-resumed"
    assert codes(verdict) == ["not-resumed"]
    assert "step 4" in evidence_of(verdict, "not-resumed")


def test_not_resumed_says_what_was_not_looked_for(lab: Lab) -> None:
    """A leg that looked for its checkpoint elsewhere is said to have read none."""

    class Elsewhere(Loop):
        def __init__(self, job: Job) -> None:
            super().__init__(Job(job.out / "nowhere", job.resume))
            self.job.out.mkdir(exist_ok=True)
            self.where = job

        def save(self) -> None:
            self.where.save(self.passes, self.state())

    verdict = lab.prove(Elsewhere.train, 7)
    assert verdict.verdict == "not-resumed"
    assert "read no checkpoint" in evidence_of(verdict, "not-resumed")


def test_nothing_loaded_into_a_model_without_moments(lab: Lab) -> None:
    """Where nothing but weights could have come back and none did, the leg is not resumed, and the keys are told."""

    class Bare(LenientLoad):
        def make_model(self) -> nn.Module:
            return nn.Linear(6, 3)

        def make_optimizer(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.model.parameters(), lr=0.1)

        def make_scheduler(self) -> None:
            pass

    verdict = lab.prove(Bare.train, 7)
    assert verdict.verdict == "not-resumed"
    assert "2 missing and 2 unexpected keys" in evidence_of(verdict, "not-resumed")


def test_model_replaced_under_the_optimizer(lab: Lab) -> None:
    """A new model that is loaded while the optimizer keeps the old one is told as weights of another model."""

    class Replaced(Loop):
        def restore(self, state: State) -> None:
            super().restore(state)
            self.model = self.make_model()
            self.model.load_state_dict(state["model"])

    verdict = lab.prove(Replaced.train, 7)
    assert_only(
        verdict,
        "weights-not-restored",
        step=5,
        facet="weights",
        said=["6 parameters in the optimizer's groups belong to no module"],
    )
    assert "do not replace it" in verdict.causes[0].remedy


def test_another_model_cannot_be_compared(lab: Lab) -> None:
    """Two runs of different models are not compared, with the first parameter that differs."""

    class Wider(Loop):
        def make_model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3))

    verdict = lab.diff(Loop.train, Wider.train)
    assert (verdict.verdict, verdict.reason) == ("could-not-judge", "incomparable")
    assert "the reference has a parameter 4.bias, and the other does not" in (verdict.message or "")
