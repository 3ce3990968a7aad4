use std::path::Path;

use super::algebra::tests::Plain;
use super::*;
use htc_kernels::linear::LinearAlgebra;
use htc_loader::backend::Reference;
use htc_loader::device::ReferenceExecutor;
use htc_loader::kv::KvType;

fn demo() -> Arc<Model> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
    Arc::new(Model::open(folder.join("reference-7m-f16.gguf")).unwrap())
}

fn gives_way<E: Executor>(executor: &E, held: usize) {
    let pool = Arc::new(Pool::new(1).unwrap());
    let on = ExecutorDevice::new(executor, &pool);
    let model = demo();
    let of = Arc::downgrade(&model);
    let kv = KvOptions::new(KvType::F32);
    for _ in 0..2 {
        drop(on.sequence(&model, 4, &kv).unwrap());
        assert_eq!(on.loaded().len(), held, "{}", on.name());
    }
    drop(model);
    assert_eq!(on.loaded().len(), 0, "{}", on.name());
    assert!(of.upgrade().is_none(), "{}", on.name());
}

#[test]
fn dropped_models_are_unloaded() {
    gives_way(&CpuExecutor(Arc::new(Pool::new(1).unwrap())), 0);
    gives_way(&ReferenceExecutor, 1);
}

struct Decomposes(Option<u64>);

impl Executor for Decomposes {
    type Backend = Reference;

    fn backend(&self) -> Reference {
        ReferenceExecutor.backend()
    }

    fn name(&self) -> String {
        "decomposes".to_owned()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.0
    }

    fn needed_bytes(&self, sessions: &[PlannedSession<'_>]) -> u64 {
        100 * sessions.len() as u64
    }

    fn linear_algebra(&self) -> Option<Result<Box<dyn LinearAlgebra>, DeviceError>> {
        Some(Ok(Box::new(Plain)))
    }
}

#[test]
fn make_room_unloads_models_without_a_sequence() {
    let pool = Arc::new(Pool::new(1).unwrap());
    let on = ExecutorDevice::with_algebra(&Decomposes(None), &pool, &[], AlgebraMemory::default());
    let (model, kv) = (demo(), KvOptions::new(KvType::F32));
    let held = || on.loaded.lock().unwrap().len();
    let sequence = on.sequence(&model, 4, &kv).unwrap();
    assert_eq!(on.algebra().name(), "plain");
    assert_eq!(held(), 1);
    on.unload_idle_models();
    assert_eq!(held(), 1);
    drop(sequence);
    assert_eq!(held(), 1);
    on.unload_idle_models();
    assert_eq!(held(), 0);
}

#[test]
fn free_memory_decides_on_device_algebra() {
    let (pool, model) = (Arc::new(Pool::new(1).unwrap()), demo());
    let kind = htc_loader::kv::KvKind::default();
    let session = PlannedSession {
        model: &model,
        positions: 1,
        kind,
    };
    let decided = |free, sums, decomposition| {
        let matrices = AlgebraMemory {
            sums,
            decomposition,
        };
        let executor = Decomposes(Some(free));
        let on = ExecutorDevice::with_algebra(&executor, &pool, &[session], matrices);
        match on.host_algebra_reason() {
            None => Ok(on.algebra().name()),
            Some(HostAlgebraReason::OutOfMemory { needed, .. }) => Err(*needed),
            Some(error) => panic!("{error}"),
        }
    };
    assert_eq!(decided(120, 20, 50), Ok("plain".to_owned()));
    assert_eq!(decided(119, 20, 50), Err(120));
    assert_eq!(decided(130, 20, 130), Ok("plain".to_owned()));
    assert_eq!(decided(129, 20, 130), Err(130));
    assert_eq!(decided(u64::MAX - 1, u64::MAX, 0), Err(u64::MAX));
}
