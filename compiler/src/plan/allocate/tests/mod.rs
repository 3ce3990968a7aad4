//! Tests with random models and closed forms.

mod allocators;
mod budgets;
mod energy;
mod experts;
mod published;

use crate::options::{CodeOptions, DenseTypes, LayoutOptions, TreatmentOptions};
use htc_formats::DType;
use htc_formats::model::{Forward, HyperParameters, MatrixId, ProjectionKind};

use super::*;
use crate::plan::{BranchShares, Budget, MatrixForm, Method, Plan, UnitPlan, compute, units};
use crate::system::random::Rng;

fn hyper(
    layers: usize,
    (heads, kv_heads, head_size): (usize, usize, usize),
    (width, ffn): (usize, usize),
) -> HyperParameters {
    HyperParameters {
        architecture: "llama".into(),
        name: None,
        vocabulary: 512,
        context: 512,
        width,
        layers,
        heads,
        kv_heads,
        head_size,
        ffn,
        norm_epsilon: 1e-5,
        rope_theta: 10000.0,
        rope_dimensions: head_size,
        rope_linear_scale: 1.0,
        forward: Forward::default(),
    }
}

fn small() -> HyperParameters {
    hyper(6, (8, 8, 32), (256, 768))
}

fn eight_billion() -> HyperParameters {
    hyper(32, (32, 8, 128), (4096, 14336))
}

fn request(allocator: Allocator, budget: Budget) -> PlanRequest {
    PlanRequest {
        method: Method::PerProjection,
        budget,
        allocation: Allocation {
            first_positions: Default::default(),
            allocator,
            ..Allocation::default()
        },
        projections: ProjectionKind::ALL.to_vec(),
        factor_type: DType::F16,
        dense_types: DenseTypes::default(),
        codes: CodeOptions::default(),
        layout: LayoutOptions::default(),
        treatment: TreatmentOptions::default(),
        effort: Default::default(),
    }
}

fn evidence(rng: &mut Rng, units: &[Unit], layers: usize) -> Evidence {
    let mut spectra = |_: u8| -> Vec<Vec<f64>> {
        let spectrum = |u: &Unit| {
            let (power, scale) = (2.0 * rng.unit(), 10.0_f64.powf(4.0 * rng.unit() - 2.0));
            let value = |i: usize| scale * ((i + 1) as f64).powf(-power);
            (0..u.full_rank()).map(value).collect()
        };
        units.iter().map(spectrum).collect()
    };
    let (plain, whitened) = (spectra(0), spectra(1));
    Evidence {
        spectra: Some(plain),
        whitened: Some(whitened),
        branches: Some(
            (0..layers)
                .map(|_| BranchShares {
                    attention: rng.unit(),
                    feed_forward: rng.unit(),
                })
                .collect(),
        ),
        variance: Some((0..layers).map(|_| 0.1 + rng.unit()).collect()),
        l2_bytes: Some(1 << 30),
        tokens_per_joule: Some(0.4),
        ..Evidence::default()
    }
}
