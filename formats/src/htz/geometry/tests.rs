use super::DepthSinkRecord;

#[test]
fn depth_sink_defaults_to_two_thirds_of_the_depth() {
    for layers in 1..200_usize {
        let expected = (2.0 * layers as f64 / 3.0).round() as usize;
        let expected = expected.min(layers - 1);
        assert_eq!(
            DepthSinkRecord::from_depth(layers).layer,
            expected,
            "{layers}"
        );
    }
    assert_eq!(DepthSinkRecord::from_depth(32).layer, 21);
    assert_eq!(DepthSinkRecord::from_depth(0).layer, 0);
    assert!(DepthSinkRecord::from_depth(usize::MAX).layer > usize::MAX / 3);
}
