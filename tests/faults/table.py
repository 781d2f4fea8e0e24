"""The points by number."""

from __future__ import annotations

from tests.faults.fault import ERRORS, KINDS, Point

ONLY_KILL = ("kill",)
LIVE, CACHE, RELOAD = {"max_num_seqs": 2}, {"block_size": 8}, {"max_model_len": 128}
DRAFTS = {"speculative_method": "ngram"}

POINTS: tuple[Point, ...] = (
    # load: before the model that serves is closed, and after
    Point("load: resolve", "engine.host.resolve:resolve", "load"),
    Point("load: resolve, again", "engine.host.loading:resolve", "load"),
    Point("load: config read", "engine.models.checkpoint:read_json", "load"),
    Point("load: config read", "engine.models.checkpoint:_parse_config", "load"),
    Point("load: config read, again", "engine.models.checkpoint:Checkpoint.open", "load", (2,)),
    Point("load: header read", "engine.models.weight_files:read_header", "load"),
    Point("load: header read, again", "engine.models.weight_files:read_header", "load", (2,)),
    Point("load: plan", "engine.host.loading:plan_memory", "load"),
    Point("load: tokenizer", "engine.text.tokenizer:Tokenizer.from_folder", "load"),
    Point("load: tokenizer", "engine.text.opening:read_folder", "load"),
    Point("load: smoke test", "engine.host.loading:check_architecture", "load"),
    Point("load: architecture", "engine.models.loader:build_on_meta", "load"),
    Point("load: allocate", "engine.models.loader:allocate", "load"),
    Point("load: weight read", "engine.formats.tensor_reader:TensorReader.copy_into", "load"),
    Point("load: weight read", "engine.formats.tensor_reader:TensorReader.copy_into", "load", (9,)),
    Point("load: rotary", "engine.models.loader:freeze_rotary", "load"),
    Point("load: first pass", "engine.host.loading:probe_kv", "load"),
    Point("load: cache", "engine.host.loading:caches_that_fit", "load"),
    Point("load: cache", "engine.host.kv_cache:build_caches", "load"),
    Point("load: capture", "engine.host.loading:capture_steps", "load"),
    Point("load: description", "engine.host.loading:model_info", "load"),
    Point("load: step loop", "engine.step.loop:Scheduler.__init__", "load"),
    # step
    Point("step: plan", "engine.scheduling.scheduler:Scheduler.plan", "step"),
    Point("step: plan", "engine.scheduling.scheduler:Scheduler.plan", "step", (5,)),
    Point("step: admit", "engine.scheduling.scheduler:Scheduler._start", "step"),
    Point("step: pack", "engine.step.execute:pack", "step", (3,)),
    Point("step: forward", "engine.runner.model_runner:ModelRunner.execute", "step"),
    Point("step: forward", "engine.runner.model_runner:forward", "step", (4,)),
    Point("step: sample", "engine.step.execute:Verification", "step", (4,)),
    Point("step: read", "engine.step.execute:InFlightStep.read", "step", (4,)),
    Point("step: output", "engine.step.loop:accept", "step", (4,)),
    Point("step: output", "engine.step.output:OutputStream.event", "step", (6,)),
    Point("step: commit", "engine.scheduling.scheduler:Scheduler.commit", "step", (4,)),
    Point("step: record", "engine.telemetry.recorder:Recorder.step", "step", (4,)),
    Point("step: draft", "engine.speculation.speculator:Speculator.propose", "step", (3,),
          options=DRAFTS),
    Point("step: follow", "engine.speculation.speculator:Speculator.follow", "step", (3,),
          options=DRAFTS),
    Point("step: snapshot", "engine.llm_engine:take_snapshot", "step", (2,)),
    # add
    Point("add: encode", "engine.llm_engine:prompt_work", "add"),
    Point("add: encode", "engine.text.tokenizer:CheckpointTokenizer.submit", "add"),
    Point("add: encode", "engine.text.pool:_Worker._ask", "add"),
    Point("add: encode", "engine.text.process:WorkerProcess.ask", "add"),
    Point("add: encoder killed", "engine.text.process:WorkerProcess.ask", "encoder",
          kinds=ONLY_KILL),
    Point("add: length", "engine.llm_engine:longest_length", "add"),
    Point("add: stream", "engine.llm_engine:OutputStream", "add"),
    Point("add: admit", "engine.step.loop:StepLoop.add", "add"),
    Point("add: queue", "engine.scheduling.scheduler:Scheduler.add", "add"),
    # save
    Point("save: chat", "app.storage.writer:transact", "chats", (3,), KINDS),
    Point("save: chat", "app.storage.chat_store:put_message", "chats", (3,), KINDS),
    Point("save: index", "app.storage.records:_index", "chats", (3,), KINDS),
    Point("save: open", "app.storage.database:connect", "opened", kinds=KINDS),
    Point("save: open", "app.storage.database:migrate", "opened", kinds=KINDS),
    *(
        Point(f"save: {name}", target, "file", kinds=KINDS, options=name)
        for name in ("layouts", "profiles", "keys", "reports")
        for target in ("os:fsync", "os:replace", "json:dumps")
    ),
    # download
    Point("download: ask", "app.features.models.hub:Hub.details", "queued", kinds=KINDS),
    Point("download: space", "app.features.models.hub_download:RepoFolder.arrived", "queued",
          kinds=KINDS),
    Point("download: write", "app.features.models.hub_download:_Part.write", "queued", (9,), KINDS),
    Point("download: fsync", "os:fsync", "queued", (3,), KINDS),
    Point("download: check", "app.features.models.hub_download:_Part.verify", "queued", (3,),
          KINDS),
    Point("download: rename", "app.features.models.hub_download:os.replace", "queued", (4,), KINDS),
    Point("download: publish", "app.features.models.hub_download:ModelDownload._publish",
          "queued", kinds=KINDS),
    Point("download: journal", "app.features.models.downloads:write_soon", "queued",
          kinds=("memory", "disk-full")),
    # reconfigure
    Point("live", "engine.host.model_host:ModelHost.use", "reconfigure", options=LIVE),
    Point("live", "engine.step.loop:StepLoop.update", "reconfigure", options=LIVE),
    Point("live", "engine.scheduling.scheduler:Scheduler.update", "reconfigure", options=LIVE),
    Point("cache rebuild: plan", "engine.host.model_host:plan_memory", "reconfigure",
          options=CACHE),
    Point("cache rebuild: release", "engine.runner.model_runner:ModelRunner.drop_cache",
          "reconfigure", options=CACHE),
    Point("cache rebuild: allocate", "engine.host.model_host:build_caches", "reconfigure",
          options=CACHE),
    Point("cache rebuild: capture", "engine.host.model_host:capture_steps", "reconfigure",
          options=CACHE),
    Point("cache rebuild: return", "engine.host.model_host:build_caches", "reconfigure", (1, 2),
          options=CACHE),
    Point("reload: resolve", "engine.llm_engine:resolve", "reconfigure", options=RELOAD),
    Point("reload: plan", "engine.host.model_host:plan_memory", "reconfigure", options=RELOAD),
    Point("reload: release", "engine.host.assembly:Assembly.drop", "reconfigure", options=RELOAD),
    Point("reload: build", "engine.host.model_host:build", "reconfigure", options=RELOAD),
    Point("reload: weight read", "engine.formats.tensor_reader:TensorReader.copy_into",
          "reconfigure", (5,), options=RELOAD),
    Point("reload: cache", "engine.host.loading:caches_that_fit", "reconfigure", options=RELOAD),
    Point("reload: return", "engine.host.model_host:build", "reconfigure", (1, 2), options=RELOAD),
    Point("reload: return", "engine.host.loading:caches_that_fit", "reconfigure", (1, 2),
          options=RELOAD),
    # the end
    Point("unload: close", "engine.step.loop:StepLoop.close", "unload"),
    Point("unload: drop", "engine.host.model_host:ModelHost.drop", "unload"),
    Point("unload: last outputs", "engine.llm_engine:LLMEngine.shutdown", "unload"),
    Point("shutdown: close", "engine.step.loop:StepLoop.close", "shutdown"),
    Point("shutdown: drop", "engine.host.model_host:ModelHost.drop", "shutdown"),
    Point("shutdown: engine", "engine.llm_engine:LLMEngine.shutdown", "shutdown"),
    # the engine's process
    Point("process: start", "app.link.child_process:ChildProcess.__init__", "started"),
    Point("process: start", "app.link.child_engine:new_fault_file", "started"),
    Point("process: ready", "app.link.child_process:ChildProcess.wait_ready", "started"),
    Point("process: read", "app.link.child_process:ChildProcess._take", "started"),
    Point("process: attach", "app.link.child_engine:IsolatedEngine._attach", "started"),
    Point("process: write", "tests.faults.process_scenes:Line.submit", "started"),
    Point("process: killed", "app.link.child_engine:IsolatedEngine._serve", "started",
          kinds=ONLY_KILL),
)  # fmt: skip


def kinds_of(point: Point) -> tuple[str, ...]:
    return tuple(kind for kind in (*ERRORS, "kill") if kind in point.kinds)
