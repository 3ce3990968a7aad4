use super::*;

const PLAIN: Attention = Attention {
    scale: 1.0,
    softcap: None,
    window: None,
};

fn halves(numbers: &[f32]) -> Vec<u16> {
    let bits = |&number: &f32| f16::from_f32(number).to_bits();
    numbers.iter().map(bits).collect()
}

#[test]
fn attention_to_equal_keys_is_the_mean_of_the_values() {
    // Two KV heads of size 1, capacity 3; four query heads share them in pairs.
    let keys = halves(&[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    let values = halves(&[1.0, 2.0, 6.0, 10.0, 20.0, 60.0]);
    let kv = KvView::new(&keys, &values, 2, 1, 3).unwrap();
    let mut out = [0.0; 8];
    attention(&[1.0; 8], 2, 1, &kv, &PLAIN, &mut out).unwrap();
    assert_eq!(out, [1.5, 1.5, 15.0, 15.0, 3.0, 3.0, 30.0, 30.0]);
    let window = Attention {
        window: Some(2),
        ..PLAIN
    };
    attention(&[1.0; 8], 2, 1, &kv, &window, &mut out).unwrap();
    assert_eq!(out, [1.5, 1.5, 15.0, 15.0, 4.0, 4.0, 40.0, 40.0]);
}

#[test]
fn softcap_bounds_the_weight_of_one_key() {
    // Capped at 1, scores of 0 and of 60,000 become 0 and 1.
    let (keys, values) = (halves(&[0.0, 60_000.0]), halves(&[1.0, 0.0]));
    let kv = KvView::new(&keys, &values, 1, 1, 2).unwrap();
    let capped = Attention {
        softcap: Some(1.0),
        ..PLAIN
    };
    let mut out = [0.0];
    attention(&[1.0], 1, 1, &kv, &capped, &mut out).unwrap();
    assert!((out[0] - 1.0 / (1.0 + 1f32.exp())).abs() < 1e-7);
}
