use super::super::kernels::available;
use super::super::tests::Random;
use super::*;

fn quantised(kernels: &Kernels, x: &[f32]) -> Vec<SuperBlock> {
    let mut out = vec![SuperBlock::ZERO; super_blocks(x.len())];
    (kernels.quantise)(x, &mut out);
    out
}

#[test]
fn codes_round_half_away_from_zero_and_sums_match_codes() {
    let mut random = Random(31);
    for len in [1, 31, 32, 33, 64, 255, 256, 257, 1000] {
        let x: Vec<f32> = random.numbers(len).iter().map(|x| x * 1e-3).collect();
        for k in available() {
            let out = quantised(k, &x);
            for (b, x) in x.chunks(BLOCK).enumerate() {
                let super_block = &out[b / BLOCKS];
                let b = b % BLOCKS;
                let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                assert_eq!(super_block.scales[b], largest / 127.0, "{}", k.name);
                for (code, x) in super_block.codes[b].iter().zip(x) {
                    // Two roundings, of the reciprocal and of the product, precede this one.
                    let exact = f64::from(*x) / (f64::from(largest) / 127.0);
                    let error = (f64::from(*code) - exact).abs();
                    assert!(error <= 0.5 + 127.0 * 1.2e-7, "{} {exact}: {code}", k.name);
                }
                assert_eq!(super_block.codes[b][x.len()..], [0; BLOCK][x.len()..]);
                let sum = |codes: &[i8]| codes.iter().map(|&c| i32::from(c)).sum::<i32>();
                assert_eq!(super_block.sums[b], sum(&super_block.codes[b]));
                for h in 0..2 {
                    let half = &super_block.codes[b][h * 16..][..16];
                    assert_eq!(super_block.half_sums[b / 4][h * 4 + b % 4], sum(half));
                }
            }
            let last = x.len().div_ceil(BLOCK) % BLOCKS;
            if last > 0 {
                let super_block = &out[out.len() - 1];
                assert!(super_block.codes[last..].iter().all(|c| *c == [0; BLOCK]));
                assert!(super_block.scales[last..].iter().all(|s| *s == 0.0));
            }
        }
    }
}

#[test]
fn halves_round_away_from_zero_and_numbers_below_round_down() {
    let below = 0.5f32.next_down();
    let mut x = [0.0; BLOCK];
    x[..9].copy_from_slice(&[127.0, 0.5, -0.5, below, -below, 1.5, -2.5, 126.5, -126.5]);
    for k in available() {
        let codes = quantised(k, &x)[0].codes[0];
        assert_eq!(
            codes[..9],
            [127, 1, -1, 0, 0, 2, -3, 127, -127],
            "{}",
            k.name
        );
    }
}

#[test]
fn all_instruction_sets_give_the_same_codes_for_any_bits() {
    let mut random = Random(32);
    for _ in 0..1000 {
        let x: Vec<f32> = (0..96)
            .map(|_| f32::from_bits(random.bits() as u32))
            .collect();
        let bits = |super_blocks: &[SuperBlock]| {
            let super_block = super_blocks[0];
            let scales = super_block.scales.map(f32::to_bits);
            (
                super_block.codes,
                scales,
                super_block.sums,
                super_block.half_sums,
            )
        };
        let expected = bits(&quantised(&super::super::plain::KERNELS, &x));
        for k in available() {
            assert_eq!(bits(&quantised(k, &x)), expected, "{}", k.name);
        }
    }
}

#[test]
fn non_finite_numbers_give_nan_blocks_and_tiny_blocks_become_zero() {
    for k in available() {
        for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 17, 31] {
                let mut x = [1.0; 2 * BLOCK];
                x[at] = odd;
                let super_block = quantised(k, &x)[0];
                assert!(super_block.scales[0].is_nan(), "{} {odd} {at}", k.name);
                assert_eq!(super_block.scales[1], 1.0 / 127.0);
            }
        }
        for tiny in [
            MIN_MAGNITUDE.next_down(),
            f32::MIN_POSITIVE,
            f32::from_bits(1),
        ] {
            let super_block = quantised(k, &[-tiny; BLOCK])[0];
            assert_eq!(super_block, SuperBlock::ZERO, "{} {tiny:e}", k.name);
        }
        for extreme in [MIN_MAGNITUDE, f32::MAX] {
            let super_block = quantised(k, &[-extreme; BLOCK])[0];
            assert_eq!(super_block.scales[0], extreme / 127.0);
            assert_eq!(
                super_block.codes[0], [-127; BLOCK],
                "{} {extreme:e}",
                k.name
            );
        }
    }
}

#[test]
fn rows_start_on_new_super_blocks_on_any_number_of_threads() {
    let mut random = Random(33);
    for (n, cols) in [(1, 0), (3, 32), (2, 288), (70, 512), (5, 20_000)] {
        let x = random.numbers(n * cols);
        let width = super_blocks(cols);
        for threads in [1, 3] {
            let pool = Pool::new(threads).unwrap();
            let k = available()[0];
            let mut out = vec![SuperBlock::ZERO; n * width];
            quantise_rows(k, &pool, cols, &x, &mut out);
            for t in 0..n {
                let alone = quantised(k, &x[t * cols..][..cols]);
                assert_eq!(out[t * width..][..width], alone);
            }
        }
    }
}
