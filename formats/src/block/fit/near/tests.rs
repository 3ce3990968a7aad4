use super::*;
use crate::block::{decode, fit::MAX_LEN};

#[test]
fn nearby_fits_differ_in_one_run_and_decode_consistently() {
    let values: Vec<f32> = (0..MAX_LEN)
        .map(|i| ((i * 37 % 101) as f32 - 47.0) / 9.0)
        .collect();
    for &dtype in BlockFit::TYPES {
        let len = dtype.block_len();
        let fit = BlockFit::search(dtype, &values[..len], None).unwrap();
        let run_len = BlockFit::run_len(dtype).unwrap();
        for run in 0..len / run_len {
            let here = run * run_len..(run + 1) * run_len;
            let mut count = 0;
            for near in [NearbyKind::Steps, NearbyKind::Offsets]
                .into_iter()
                .flat_map(|of| fit.nearby_fits(run, of))
            {
                assert_ne!(near, fit);
                let mut codes = vec![0; len];
                near.quantise(&values[..len], &mut codes).unwrap();
                let mut bytes = vec![0; dtype.block_bytes()];
                near.pack(&codes, &mut bytes).unwrap();
                let mut decoded = vec![0.0; len];
                decode(dtype, &bytes, &mut decoded).unwrap();
                for (place, (&code, decoded)) in codes.iter().zip(decoded).enumerate() {
                    assert_eq!(near.value(place, code), decoded, "{dtype}");
                    if !here.contains(&place) {
                        assert_eq!(fit.value(place, code), decoded, "{dtype}");
                    }
                }
                let place = here.start;
                let parts = near.run(place).step / fit.run(place).step;
                let apart = (parts - 1.0).abs() * f32::from(fit.scales[run]).abs();
                assert!(
                    (0.75..1.25).contains(&parts) || apart < 1.01,
                    "{dtype}: {parts}"
                );
                let middle = |of: &BlockFit| {
                    of.run(place).step * of.format.middle_code() + of.run(place).shift
                };
                let moved = (middle(&near) - middle(&fit)).abs();
                let least = 1.51 * near.super_scales.d_min.to_f32().abs() + 1e-3;
                assert!(moved <= least, "{dtype}: {moved} {least}");
                count += 1;
            }
            assert!((2..=10).contains(&count), "{dtype}: {count}");
        }
    }
}
