use super::*;

#[test]
fn every_f16_converts_exactly() {
    for bits in 0..=u16::MAX {
        let (ours, theirs) = (
            f16_to_f32(bits.to_le_bytes()),
            f16::from_bits(bits).to_f64(),
        );
        if theirs.is_nan() {
            assert!(ours.is_nan(), "{bits:#06x}");
        } else {
            assert_eq!(f64::from(ours), theirs, "{bits:#06x}");
            assert_eq!(ours.is_sign_negative(), theirs.is_sign_negative());
        }
    }
}
