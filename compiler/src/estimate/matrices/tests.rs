use super::*;
use crate::calibrate::tests::hyper;

#[test]
fn memory_follows_the_widths() {
    let mut hyper = HyperParameters {
        width: 4096,
        ffn: 14_336,
        heads: 32,
        head_size: 128,
        ..hyper()
    };
    let [without, with] = [false, true].map(|calibrated| device_bytes(&hyper, calibrated, 1));
    assert_eq!(without.sums, 0);
    let squares = 8 * (4 * 4096 * 4096 + 14_336 * 14_336);
    assert_eq!(with.sums, squares + 8 * 5 * 512 * 14_336);
    let more = 4 * 8 * (14_336 * 14_336 - 4096 * 4096);
    assert_eq!(with.decomposition - without.decomposition, more);
    let threads = device_bytes(&hyper, false, 5).decomposition - without.decomposition;
    assert_eq!(threads, 4 * 2 * (8 * 4096 * 4096 + (64 << 20)));
    assert_eq!(host_copy_bytes(4096), 4 * (64 << 20) + 2 * 8 * 4096 * 4096);
    hyper.ffn = usize::MAX / 2;
    assert_eq!(device_bytes(&hyper, true, 1).sums, u64::MAX);
}
