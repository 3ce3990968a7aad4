use super::*;
use crate::math::Host;

fn sink_of(curve: &[f64]) -> DepthSink {
    depth_sink(curve, 3, Vec::new())
}

#[test]
fn plateau_tolerance_follows_the_slope_of_the_curve() {
    let found = sink_of(&[0.1, 0.5, 0.7, 0.9, 0.9491, 0.9501]);
    assert_eq!((found.layer, found.two_thirds), (Some(3), 4));
    assert_eq!((found.agrees, found.tolerance), (Some(true), 0.17002));
    assert_eq!(found.relative, Some(0.5));
    let early = sink_of(&[0.95; 12]);
    assert_eq!((early.layer, early.agrees), (Some(0), Some(false)));
    assert_eq!(early.tolerance, 1e-3);
    let bent = [0.0, 0.5, 0.81, 0.9, 0.95, 1.0];
    for (scale, layer) in [(1.0, 2), (0.1, 2), (0.01, 2), (0.001, 0)] {
        let curve = bent.map(|value| scale * value);
        assert_eq!(sink_of(&curve).layer, Some(layer), "{scale}");
    }
    let measured = [
        0.894769, 0.904954, 0.917041, 0.927848, 0.933866, 0.943072, 0.947617, 0.950888,
    ];
    assert_eq!(sink_of(&measured).layer, Some(5));
}

#[test]
fn rising_curve_has_no_depth_sink() {
    for curve in [
        (0..8).map(|i| f64::from(i) / 10.0).collect::<Vec<_>>(),
        (0..8).map(|i| f64::from(i * i) / 50.0).collect(),
        vec![0.0, 0.5],
        vec![0.0, 0.5, 0.5, 0.5, 0.5, 0.9],
    ] {
        let found = sink_of(&curve);
        let nothing = (found.layer, found.agrees, found.relative);
        assert_eq!(nothing, (None, None, None), "{curve:?}");
        assert!(found.reason.unwrap().contains("no plateau"));
    }
    let one = sink_of(&[0.95]);
    assert!(one.layer.is_none() && one.reason.unwrap().contains("one layer"));
}

#[test]
fn weights_are_one_over_the_trace() {
    let moment = diagonal(&[3.0, 1.0, 0.0]);
    assert_eq!(weight(&moment), 0.25);
    assert_eq!(weight(&diagonal(&[0.0; 3])), 0.0);
    let sum = cumulated([moment].into_iter()).unwrap();
    assert_eq!((sum[(0, 0)], sum[(1, 1)]), (0.75, 0.25));
}

#[test]
fn two_thirds_match_the_literature() {
    for (layers, expected) in [(32, 21), (26, 17), (30, 20), (1, 1), (8, 5)] {
        assert_eq!(sink_of(&vec![0.0; layers]).two_thirds, expected);
    }
}

fn diagonal(variances: &[f64]) -> StoredMoment {
    let n = variances.len();
    let mut second = Vec::new();
    for (row, &variance) in variances.iter().enumerate() {
        second.extend((0..row).map(|_| 0.0));
        second.push(variance as f32);
    }
    StoredMoment {
        count: 100,
        mean: vec![0.0; n],
        second,
    }
}

#[test]
fn curve_is_flat_without_new_directions() {
    let layer = |layer: usize| {
        let mut variances = vec![1e-5; 12];
        variances[..=layer.min(3)].fill(1.0);
        let scale = 10f64.powi(layer as i32);
        diagonal(&variances.map_scaled(scale))
    };
    let layers: Vec<StoredMoment> = (0..7).map(layer).collect();
    let up_to = |last: usize| cumulated(layers[..=last].iter().cloned()).unwrap();
    let whole = CumulatedCovariance::new(up_to(6), &Host).unwrap();
    assert_eq!(whole.rank, 4);
    let curve: Vec<f64> = (0..7)
        .map(|l| whole.explained(up_to(l), &Host).unwrap())
        .collect();
    assert!((curve[6] - curve[2] - 1.0 / 7.0).abs() < 1e-3, "{curve:?}");
    assert!(curve.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12));
    assert_eq!(depth_sink(&curve, whole.rank, Vec::new()).layer, Some(3));
}

trait Scaled {
    fn map_scaled(&self, by: f64) -> Vec<f64>;
}

impl Scaled for Vec<f64> {
    fn map_scaled(&self, by: f64) -> Vec<f64> {
        self.iter().map(|v| v * by).collect()
    }
}

#[test]
fn constant_stream_does_not_divide_by_zero() {
    let zero = || cumulated([diagonal(&[0.0; 3])].into_iter()).unwrap();
    let whole = CumulatedCovariance::new(zero(), &Host).unwrap();
    assert_eq!(whole.explained(zero(), &Host).unwrap(), 1.0);
    assert!(cumulated(std::iter::empty()).is_none());
}
