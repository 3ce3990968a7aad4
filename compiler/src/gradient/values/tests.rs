use super::*;

/// A value read by several steps, in every way that a step contributes.
#[test]
fn gradients_of_a_value_read_twice_are_added() {
    let mut gradients: ValueGradients<f64> = ValueGradients::default();
    for _ in 0..2 {
        gradients.begin(2);
        let write = |number: f64| move |[to]: [&mut [f64]; 1]| to.fill(number);
        gradients.add([0], [3], write(1.0));
        assert_eq!(gradients.get(0), [1.0; 3]);
        gradients.add([0], [3], write(2.0));
        gradients.sum(0, 3).iter_mut().for_each(|to| *to += 4.0);
        let (to, accumulate) = gradients.contribution(0, 3);
        assert_eq!((to, accumulate), (&mut [7.0; 3][..], Accum::Add));
        // One step that reads a value as both of its inputs.
        gradients.add([1, 1], [2, 2], |[one, other]| {
            one.fill(8.0);
            other.fill(16.0);
        });
        assert_eq!(gradients.get(1), [24.0; 2]);
    }
    gradients.begin(2);
    assert_eq!(gradients.contribution(0, 3).1, Accum::Replace);
    gradients.begin(2);
    assert_eq!(gradients.sum(0, 3), [0.0; 3]);
}
