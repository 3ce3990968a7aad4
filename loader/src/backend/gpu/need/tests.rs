use super::*;

#[test]
fn insufficient_memory_is_refused_with_numbers() {
    let need = GpuMemoryEstimate {
        weights: 100,
        kv: 20,
        activations: 3,
    };
    assert_eq!(need.fits([123, 200]), Ok(()));
    let refused = DeviceError::OutOfMemory {
        needed: 123,
        free: 122,
        total: 200,
    };
    assert_eq!(need.fits([122, 200]), Err(refused));
    let endless = GpuMemoryEstimate {
        kv: u64::MAX,
        ..need
    };
    assert!(endless.fits([usize::MAX - 1, usize::MAX]).is_err());
}

#[cfg(feature = "emulated")]
#[test]
fn estimate_counts_weights_and_positions() {
    use crate::backend::EmulatedDevice;
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../assets/demo/reference-7m-f16.gguf"
    );
    let model = Model::open(path).unwrap();
    let need = |positions| {
        let (model, kind) = (&model, KvKind::default());
        GpuMemoryEstimate::for_sessions::<EmulatedDevice>(&[PlannedSession {
            model,
            positions,
            kind,
        }])
    };
    // Float16 matrices have the file's size except for alignment; the file is slightly larger.
    let file = model.file().size();
    let weights = need(1).weights;
    assert!(
        weights <= file + (256 << 10) && weights > file * 9 / 10,
        "{weights} {file}"
    );
    assert_eq!(need(1000).kv, 2000 * 4096);
    assert_eq!(need(1).kv, 256 * 4096);
    assert!(need(100).activations > need(1).activations);
    assert_eq!(need(BATCH).activations, need(10 * BATCH).activations);
}
