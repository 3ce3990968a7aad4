use super::*;

#[test]
fn check_limits_total_width_of_heads() {
    let good = HyperParameters {
        architecture: "llama".to_owned(),
        name: None,
        vocabulary: 32,
        context: 32,
        width: 64,
        layers: 1,
        heads: 4,
        kv_heads: 2,
        head_size: 16,
        ffn: 128,
        norm_epsilon: 1e-5,
        rope_theta: 1e4,
        rope_dimensions: 16,
        rope_linear_scale: 1.0,
        forward: Forward::default(),
    };
    assert_eq!(good.check(), Ok(()));
    let bad = HyperParameters {
        heads: limits::MAX_WIDTH,
        kv_heads: 1,
        head_size: limits::MAX_HEAD_SIZE,
        ..good.clone()
    };
    let error = bad.check().unwrap_err();
    assert_eq!(error.name, "head_size");
    assert!(!error.to_string().contains('\n'));
    let bad = HyperParameters {
        heads: 1,
        kv_heads: 1,
        head_size: limits::MAX_WIDTH,
        ..good
    };
    let error = bad.check().unwrap_err();
    assert_eq!(
        error.to_string(),
        "hyper-parameter head_size is 1048576, expected 1 to 4096"
    );
}
