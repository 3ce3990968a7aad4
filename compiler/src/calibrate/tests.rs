//! Stored statistics of a layer, checked against float64 sums over all vectors.

use std::error::Error;
use std::ffi::OsStr;

use htc_formats::folder::Folder;
use htc_formats::model::{ActivationPoint, Forward};
use htc_kernels::cpu::Cpu;
use htc_loader::exec::{Point, Tap};

use super::moments::MomentSums;
use super::statistics::LayerSums;
use super::store::Identity;
use super::*;
use crate::device;
use crate::system::random::Rng;

pub(crate) fn calibrated(
    model: &Arc<Model>,
    source: Digest,
    options: &CalibrationOptions,
    threads: usize,
    watch: Progress,
) -> Result<Calibration, Box<dyn Error>> {
    device::run_on_cpu(threads, |device| {
        Ok(calibrate(model, source, options, device, watch)?)
    })
}

const CONTEXT: usize = 5;
const WINDOWS: usize = 70;
const EXTENT: TextExtent = TextExtent {
    context: CONTEXT,
    windows: WINDOWS,
};

pub(crate) fn hyper() -> HyperParameters {
    HyperParameters {
        architecture: "llama".into(),
        name: None,
        vocabulary: 16,
        context: CONTEXT,
        width: 12,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_size: 3,
        ffn: 20,
        norm_epsilon: 1e-5,
        rope_theta: 10000.0,
        rope_dimensions: 2,
        rope_linear_scale: 1.0,
        forward: Forward::default(),
    }
}

fn moments(x: &[f32], order: usize) -> (Vec<f64>, Vec<f64>) {
    let n = (x.len() / order) as f64;
    let (mut mean, mut second) = (vec![0.0; order], vec![0.0; order * order]);
    for row in x.chunks_exact(order) {
        for i in 0..order {
            mean[i] += f64::from(row[i]) / n;
            for j in 0..=i {
                second[i * order + j] += f64::from(row[i]) * f64::from(row[j]) / n;
            }
        }
    }
    (mean, second)
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
    }
}

fn head(x: &[f32], index: usize, heads: usize) -> Vec<f32> {
    let size = hyper().head_size;
    let rows = x.chunks_exact(heads * size);
    rows.flat_map(|row| row[index * size..][..size].to_vec())
        .collect()
}

fn later(x: &[f32], width: usize) -> Vec<f32> {
    let rows = x.chunks_exact(width).enumerate();
    let later = rows.filter(|(index, _)| index % CONTEXT != 0);
    later.flat_map(|(_, row)| row.to_vec()).collect()
}

#[test]
fn statistics_match_the_observed_vectors() {
    let hyper = hyper();
    let cpu = Cpu::with_threads(2).unwrap();
    let mut sums = LayerSums::new(&cpu, None, &hyper, 0, EXTENT).unwrap();
    let widths = [
        (Point::Input(ActivationPoint::Attention), 12),
        (Point::Queries, 12),
        (Point::Keys, 6),
        (Point::Values, 6),
        (Point::Input(ActivationPoint::AttentionOutput), 12),
        (Point::AttentionBranch, 12),
        (Point::Input(ActivationPoint::Ffn), 12),
        (Point::Input(ActivationPoint::FfnHidden), 20),
        (Point::FfnBranch, 12),
    ];
    let mut random = Rng(3);
    let mut seen: Vec<Vec<f32>> = vec![Vec::new(); widths.len() + 1];
    for _ in 0..WINDOWS {
        for (position, n) in [(0, 3), (3, 2)] {
            let mut rows = |width: usize, seen: &mut Vec<f32>| {
                let x: Vec<f32> = (0..n * width)
                    .map(|_| random.normal() as f32 + 0.3)
                    .collect();
                seen.extend(&x);
                x
            };
            sums.set_position(position);
            for ((point, width), seen) in widths.iter().zip(&mut seen) {
                let x = rows(*width, seen);
                sums.see(0, *point, &x);
            }
            let x = rows(12, &mut seen[widths.len()]);
            sums.add_stream(&x);
        }
    }
    sums.finish().unwrap();
    assert!(sums.is_finite());
    let of = |point: Point| &seen[widths.iter().position(|(p, _)| *p == point).unwrap()];
    for kv in 0..2 {
        let queries = [0, 1]
            .map(|i| head(of(Point::Queries), 2 * kv + i, 4))
            .concat();
        let keys = head(of(Point::Keys), kv, 2);
        let values = head(of(Point::Values), kv, 2);
        let sums = &sums.heads[kv];
        for (sums, x) in sums.iter().zip([queries, keys, values]) {
            assert_eq!(sums.count(), x.len() as u64 / 3);
            close(&sums.mean(), &moments(&x, 3).0);
        }
    }
    let stream = &seen[widths.len()];
    let norms = stream.chunks_exact(12).map(|row| {
        let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        squares.sqrt()
    });
    let mut expected = [0.0; CONTEXT];
    let every: Vec<f64> = norms.clone().collect();
    norms
        .enumerate()
        .for_each(|(index, norm)| expected[index % CONTEXT] += norm);
    close(&sums.norms, &expected);
    let first: Vec<f32> = stream
        .chunks_exact(12)
        .step_by(CONTEXT)
        .flatten()
        .copied()
        .collect();
    close(&sums.sink.mean(), &moments(&first, 12).0);

    let folder = tempfile::tempdir().unwrap();
    let folder = Folder::open(folder.path()).unwrap();
    let name = OsStr::new("layer");
    let key = Digest::of_bytes(b"key");
    let identity = Identity { key, layer: 1 };
    store::write_layer(&folder, name, identity, Digest::of_bytes(b"stream"), &sums).unwrap();
    let open =
        |identity, extent| StoredLayer::open(&folder, name, identity, &hyper, extent, |_| ());
    let stored = open(identity, EXTENT).unwrap();
    assert_eq!(stored.stream_digest(), Digest::of_bytes(b"stream"));
    use ActivationPoint::{Attention, AttentionOutput, Ffn, FfnHidden};
    let sites = [Attention, AttentionOutput, Ffn, FfnHidden];
    let inputs = block_inputs(&hyper, 0).into_iter();
    assert!(inputs.map(|input| input.point).eq(sites));
    for site in sites {
        let (moment, x) = (stored.site(site), of(Point::Input(site)));
        let (mean, second) = moments(x, moment.mean.len());
        assert_eq!(moment.count as usize, x.len() / mean.len());
        close(&moment.mean, &mean);
        close(&moment.lower(), &second);
        let diagonal: Vec<f64> = (0..mean.len())
            .map(|i| second[i * mean.len() + i])
            .collect();
        close(&moment.diagonal(), &diagonal);
    }
    for site in sites {
        let x = of(Point::Input(site));
        let first = x.chunks_exact(12).step_by(CONTEXT).flatten().copied();
        let expected = matches!(site, ActivationPoint::Attention | ActivationPoint::Ffn)
            .then(|| moments(&first.collect::<Vec<f32>>(), 12).0);
        assert_eq!(stored.first_input(site).is_some(), expected.is_some());
        if let (Some(found), Some(expected)) = (stored.first_input(site), expected) {
            close(&found, &expected);
        }
    }
    let of_network = stored.first_input(ActivationPoint::Ffn);
    let of_expert = stored.first_input(ActivationPoint::ExpertInput(1));
    assert_eq!(of_expert, of_network);
    let (mean, second) = moments(&later(stream, 12), 12);
    let energy: f64 = (0..12)
        .map(|i| second[i * 12 + i] - mean[i] * mean[i])
        .sum();
    close(&[stored.stream().variance()], &[energy / 12.0]);
    let branches = [Point::AttentionBranch, Point::FfnBranch].map(|point| {
        let x = later(of(point), 12);
        x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / (x.len() / 12) as f64
    });
    close(&stored.branches(), &branches);

    close(&stored.norms(), &expected.map(|sum| sum / WINDOWS as f64));
    let (mean, second) = moments(&first, 12);
    close(&stored.sink().mean, &mean);
    close(&stored.sink().lower(), &second);
    let values = head(of(Point::Values), 1, 2);
    close(&stored.head(1)[2].lower(), &moments(&values, 3).1);
    assert_eq!(stored.sample(), later(stream, 12));
    let of_windows = (0..WINDOWS).flat_map(|window| [window; CONTEXT - 1]);
    assert_eq!(stored.sample_windows(), of_windows.collect::<Vec<_>>());
    let found: Vec<f64> = stored.token_norms().iter().map(|&x| x.into()).collect();
    close(&found, &every);

    let other_key = Digest::of_bytes(b"another key");
    assert!(
        open(
            Identity {
                key: other_key,
                layer: 1
            },
            EXTENT
        )
        .is_none()
    );
    assert!(open(Identity { key, layer: 0 }, EXTENT).is_none());
    let longer = TextExtent {
        context: CONTEXT + 1,
        ..EXTENT
    };
    let fewer = TextExtent {
        windows: WINDOWS - 1,
        ..EXTENT
    };
    assert!(open(identity, longer).is_none() && open(identity, fewer).is_none());
}

#[test]
fn values_beyond_float32_are_not_stored() {
    let cpu = Cpu::with_threads(1).unwrap();
    for bad in [f32::NAN, f32::INFINITY, 1e30] {
        let mut sums = LayerSums::new(&cpu, None, &hyper(), 0, EXTENT).unwrap();
        let mut x = vec![0.0; 20];
        x[7] = bad;
        sums.see(0, Point::Input(ActivationPoint::FfnHidden), &x);
        sums.finish().unwrap();
        assert!(!sums.is_finite(), "{bad}");
    }
}

#[test]
fn sample_is_spread_evenly_over_later_positions() {
    let cpu = Cpu::with_threads(1).unwrap();
    let extent = TextExtent {
        context: 100,
        windows: 9,
    };
    for batch in [100, 7] {
        let mut sums = LayerSums::new(&cpu, None, &hyper(), 0, extent).unwrap();
        let mut row = 0;
        for _ in 0..extent.windows {
            let positions: Vec<usize> = (0..extent.context).collect();
            for positions in positions.chunks(batch) {
                sums.set_position(positions[0]);
                let rows = positions.iter().flat_map(|_| {
                    row += 1;
                    [(row - 1) as f32; 12]
                });
                sums.add_stream(&rows.collect::<Vec<f32>>());
            }
        }
        let later: Vec<f32> = (0..900u16)
            .filter(|row| row % 100 != 0)
            .map(f32::from)
            .collect();
        let found: Vec<f32> = sums.sample.chunks_exact(12).map(|row| row[0]).collect();
        assert_eq!(found.len(), 512);
        for (index, row) in found.iter().enumerate() {
            let stretch = index * 891 / 512..(index + 1) * 891 / 512;
            assert!(later[stretch].contains(row), "{index}: {row}");
        }
    }
}

#[test]
fn variance_with_combines_two_moments() {
    let first = StoredMoment {
        count: 2,
        mean: vec![12.0, 0.0],
        second: vec![148.0, 0.0, 0.0],
    };
    let later = StoredMoment {
        count: 3,
        mean: vec![2.0, 0.0],
        second: vec![14.0 / 3.0, 0.0, 0.0],
    };
    assert!((first.variance_with(&later) - (62.0 - 36.0) / 2.0).abs() < 1e-5);
    assert!((later.variance() - 1.0 / 3.0).abs() < 1e-6);
}

fn feed(sums: &mut LayerSums, seed: u64) {
    let mut random = Rng(seed);
    let points = [
        (Point::Input(ActivationPoint::Attention), 12),
        (Point::Queries, 12),
        (Point::Keys, 6),
        (Point::Values, 6),
        (Point::AttentionBranch, 12),
        (Point::Input(ActivationPoint::FfnHidden), 20),
        (Point::FfnBranch, 12),
    ];
    let mut rows = |width: usize| -> Vec<f32> {
        let numbers = CONTEXT * width;
        (0..numbers).map(|_| random.normal() as f32).collect()
    };
    sums.set_position(0);
    for (point, width) in points {
        sums.see(0, point, &rows(width));
    }
    sums.add_stream(&rows(12));
}

#[test]
fn a_weight_counts_as_repetitions() {
    let hyper = hyper();
    let cpu = Cpu::with_threads(1).unwrap();
    let (mut weighted, mut repeated) = (
        LayerSums::new(&cpu, None, &hyper, 0, EXTENT).unwrap(),
        LayerSums::new(&cpu, None, &hyper, 0, EXTENT).unwrap(),
    );
    for seed in [1, 2] {
        feed(&mut weighted, seed);
        (0..3).for_each(|_| feed(&mut repeated, seed));
    }
    weighted.reweigh(3.0);
    for seed in [3, 4, 5] {
        feed(&mut weighted, seed);
        feed(&mut repeated, seed);
    }
    weighted.finish().unwrap();
    repeated.finish().unwrap();
    let moments = |sums: &LayerSums| {
        let sites = [ActivationPoint::Attention, ActivationPoint::FfnHidden]
            .map(|site| sums.sites.iter().find(|sums| sums.point == site).unwrap());
        let sites = sites.map(|site| &site.moments);
        let head = &sums.heads[1];
        let all = sites.into_iter().chain([&sums.stream, &sums.sink]);
        let all = all.chain(head);
        all.flat_map(|moments| [moments.mean(), moments.second_moment()].concat())
            .collect::<Vec<f64>>()
    };
    close(&moments(&weighted), &moments(&repeated));
    close(&weighted.norms, &repeated.norms);
    close(&weighted.branches, &repeated.branches);
    close(
        &weighted.first_inputs.concat(),
        &repeated.first_inputs.concat(),
    );
    assert_eq!(weighted.sink.weight(), repeated.sink.weight());
    let folder = tempfile::tempdir().unwrap();
    let identity = Identity {
        key: Digest::of_bytes(b"key"),
        layer: 0,
    };
    let folder = Folder::open(folder.path()).unwrap();
    let stored = [("weighted", &mut weighted), ("repeated", &mut repeated)].map(|(name, sums)| {
        let name = OsStr::new(name);
        sums.sample.resize(12 * WINDOWS * (CONTEXT - 1), 0.0);
        sums.token_norms.resize(WINDOWS * CONTEXT, 0.0);
        store::write_layer(&folder, name, identity, Digest::default(), sums).unwrap();
        StoredLayer::open(&folder, name, identity, &hyper, EXTENT, |_| ()).unwrap()
    });
    close(&stored[0].norms(), &stored[1].norms());
    close(&stored[0].branches(), &stored[1].branches());
    let first = stored
        .each_ref()
        .map(|of| of.first_input(ActivationPoint::Attention).unwrap());
    close(&first[0], &first[1]);
}

#[test]
fn head_file_round_trips_and_checks_its_identity() {
    let (hyper, cpu) = (hyper(), Cpu::with_threads(1).unwrap());
    let mut random = Rng(5);
    let x: Vec<f32> = (0..12 * 30).map(|_| random.normal() as f32 + 0.5).collect();
    let mut sums = MomentSums::new(12);
    sums.add(&cpu, &x);
    let folder = tempfile::tempdir().unwrap();
    let folder = Folder::open(folder.path()).unwrap();
    let name = OsStr::new("head");
    let key = Digest::of_bytes(b"key");
    let identity = Identity { key, layer: 2 };
    store::write_head(&folder, name, identity, &sums).unwrap();
    let open = |identity, hyper: &HyperParameters| {
        let mut message = String::new();
        let found = StoredHead::open(&folder, name, identity, hyper, |why| {
            message = why.to_owned()
        });
        (found, message)
    };
    let (found, message) = open(identity, &hyper);
    let inputs = found.unwrap().inputs();
    assert_eq!((inputs.count, message), (30, String::new()));
    let (mean, second) = moments(&x, 12);
    close(&inputs.mean, &mean);
    close(&inputs.lower(), &second);
    let (found, message) = open(Identity { key, layer: 1 }, &hyper);
    assert!(found.is_none() && message.contains("another calibration"));
    let wider = HyperParameters {
        width: 16,
        ..hyper.clone()
    };
    let (found, message) = open(identity, &wider);
    assert!(found.is_none() && message.contains("bytes, expected"));
}
