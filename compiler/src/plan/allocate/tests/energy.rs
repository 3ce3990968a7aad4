//! Plans with measured energy.

use super::*;
use crate::options::MeasuredEnergy;

fn measured(joules_per_byte: f64) -> Option<MeasuredEnergy> {
    Some(MeasuredEnergy {
        joules_per_byte,
        interval: Some((0.5 * joules_per_byte, 2.0 * joules_per_byte)),
        joules_per_token: 1e6,
        pairs: 8,
        sensor: "GPU".into(),
        digest: Default::default(),
    })
}

#[test]
fn measured_energy_pays_for_bytes() {
    let mut rng = Rng(8);
    let mut asked = request(Allocator::DiffPlan, Budget::Energy);
    let units = units(&small(), &asked, |_, _| DType::F32).unwrap();
    let given = evidence(&mut rng, &units, 6);
    let all: f64 = units.iter().map(|u| u.parameters() as f64).sum();
    let by_tokens = Evidence {
        tokens_per_joule: Some(1e-3),
        ..given.clone()
    };
    let by_bytes = Evidence {
        tokens_per_joule: None,
        energy: measured(1e3 / (4.0 * all)),
        ..given.clone()
    };
    let made = |asked: &PlanRequest, evidence: &Evidence| {
        compute(&small(), asked.clone(), evidence, |_, _| DType::F32).unwrap()
    };
    asked.factor_type = DType::F32;
    let [one, other] = [&by_tokens, &by_bytes].map(|evidence| made(&asked, evidence));
    assert!(one.ratio() < 1.0);
    assert_eq!(one.units, other.units);
    asked.factor_type = DType::F16;
    let [one, other] = [&by_tokens, &by_bytes].map(|evidence| made(&asked, evidence));
    assert_ne!(one.units, other.units);
    let spectra = given.whitened.as_ref().unwrap();
    for ((unit, planned), spectrum) in units.iter().zip(&other.units).zip(spectra) {
        let lost = waterfill::lost_energy(spectrum);
        let numbers = unit.outs + unit.cols;
        let weight =
            |rank: usize| lost[rank] + 0.005 * 1e3 * (2 * rank * numbers) as f64 / (4.0 * all);
        let ranks = (8..=unit.full_rank()).step_by(8);
        let ranks = ranks.filter(|rank| rank * numbers < unit.outs * unit.cols);
        let least = ranks
            .min_by(|&a, &b| weight(a).total_cmp(&weight(b)))
            .unwrap();
        let dense = 0.005 * 1e3 * unit.parameters() as f64 / all;
        match planned.rank() {
            Some(rank) => assert!(rank == least && weight(rank) <= dense, "{rank} {least}"),
            None => assert!(dense < weight(least)),
        }
    }
    let said = &other.notes[1];
    for word in [
        "95 % interval",
        "8 pairs by GPU",
        "1.000e6 J beside",
        "sha256 000",
    ] {
        assert!(said.contains(word), "{said}");
    }
    let mut beside = by_bytes.clone();
    beside.energy.as_mut().unwrap().joules_per_token = 0.0;
    assert_eq!(made(&asked, &beside).units, other.units);
    let [cheap, dear] = [1e-9, 1e-6].map(|slope| Evidence {
        energy: measured(slope),
        ..by_bytes.clone()
    });
    let under = |budget, evidence| made(&request(Allocator::DiffPlan, budget), evidence);
    let budget = Budget::Bytes(2_000_000);
    assert_eq!(under(budget, &cheap).units, under(budget, &dear).units);
    assert!(under(budget, &dear).notes[0].contains("the energy term nothing"));
    let said = under(Budget::Ratio(0.9), &dear).notes[0].clone();
    assert!(said.contains("between units alone"), "{said}");
    let both = Evidence {
        tokens_per_joule: Some(1.0),
        ..by_bytes.clone()
    };
    for (wrong, word) in [
        (both, "both"),
        (
            Evidence {
                energy: measured(f64::NAN),
                ..by_bytes.clone()
            },
            "NaN",
        ),
        (
            Evidence {
                energy: measured(1e300),
                ..by_bytes
            },
            "at most 1",
        ),
    ] {
        let error = compute(&small(), asked.clone(), &wrong, |_, _| DType::F32).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}
