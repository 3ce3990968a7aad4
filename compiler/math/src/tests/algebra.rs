//! Factorisations by an algebra that a caller brings.

use std::sync::Mutex;

use faer::{Accum, Mat, MatMut, MatRef};

use super::super::{
    Algebra, AxiomOptions, AxiomSlot, BasisOptions, BasisWeighting, FactoriseError, Gauge, Gram,
    Host, Leading, LowRankOptions, Path, Side, axiom_gauge, gauged_singular_values, low_rank_with,
    shared_basis_with, shared_components, shared_singular_values, singular_values,
};
use super::Dense;
use super::gauge::Moment;

/// The host, which tells what it was asked for; from some question on it refuses.
#[derive(Debug, Default)]
struct Asked {
    asked: Mutex<Vec<&'static str>>,
    refuses_from: Option<usize>,
}

impl Asked {
    fn told(&self, what: &'static str) -> Result<(), FactoriseError> {
        let mut asked = self.asked.lock().unwrap();
        asked.push(what);
        match self.refuses_from {
            Some(from) if asked.len() > from => Err(FactoriseError::Device {
                message: what.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn sorted(&self) -> Vec<&'static str> {
        let mut asked = self.asked.lock().unwrap().clone();
        asked.sort_unstable();
        asked.dedup();
        asked
    }
}

impl Algebra for Asked {
    fn name(&self) -> String {
        "asked".to_owned()
    }

    fn eigen(&self, matrix: Mat<f64>, k: usize) -> Result<Leading, FactoriseError> {
        self.told("eigen")?;
        Host.eigen(matrix, k)
    }

    fn eigenvalues(&self, matrix: Mat<f64>) -> Result<Vec<f64>, FactoriseError> {
        self.told("eigenvalues")?;
        Host.eigenvalues(matrix)
    }

    fn right_singular(&self, tall: Mat<f64>, k: usize) -> Result<Leading, FactoriseError> {
        self.told("right singular")?;
        Host.right_singular(tall, k)
    }

    fn multiply(
        &self,
        out: MatMut<'_, f64>,
        accumulate: Accum,
        x: MatRef<'_, f64>,
        y: MatRef<'_, f64>,
        scale: f64,
    ) -> Result<(), FactoriseError> {
        self.told("multiply")?;
        Host.multiply(out, accumulate, x, y, scale)
    }

    fn multiply_lower(
        &self,
        x: MatRef<'_, f64>,
        y: MatRef<'_, f64>,
    ) -> Result<Mat<f64>, FactoriseError> {
        self.told("multiply lower")?;
        Host.multiply_lower(x, y)
    }

    fn gram(&self, order: usize) -> Result<Box<dyn Gram>, FactoriseError> {
        self.told("gram")?;
        Host.gram(order)
    }
}

/// Something that is asked of an algebra, as the bits of all numbers that come of it, and what it is expected to ask for.
type Work<'a> = (
    &'static str,
    Box<dyn Fn(&dyn Algebra) -> Result<Vec<u64>, FactoriseError> + 'a>,
    &'static [&'static str],
);

fn bits(parts: &[&[f32]], values: &[f64]) -> Vec<u64> {
    let parts = parts.iter().flat_map(|part| part.iter());
    let parts = parts.map(|value| u64::from(value.to_bits()));
    parts.chain(values.iter().map(|v| v.to_bits())).collect()
}

/// Each factorisation that takes time. Gauges are made anew for each, since a root is found once.
fn all<'a>(tall: &'a Dense, wide: &'a Dense, moment: &'a Moment) -> Vec<Work<'a>> {
    let whiten = || Gauge::whiten(moment.of(), 0.01);
    let factors = move |weight: &'a Dense, path, gauged: bool| {
        move |algebra: &dyn Algebra| {
            let input = if gauged { whiten()? } else { Gauge::None };
            let options = LowRankOptions {
                path,
                input: &input,
                algebra,
                ..LowRankOptions::default()
            };
            let found = low_rank_with(weight.weight(), 7, &options)?;
            Ok(bits(&[&found.a, &found.b], &found.singular_values))
        }
    };
    let basis = move |gauged: bool| {
        move |algebra: &dyn Algebra| {
            let gauge = if gauged { whiten()? } else { Gauge::None };
            let options = BasisOptions {
                gauge: &gauge,
                algebra,
                ..BasisOptions::default()
            };
            let found = shared_basis_with(&[tall.weight(), wide.weight()], 9, &options)?;
            let projected = found.projected.iter().map(Vec::as_slice);
            let parts: Vec<&[f32]> = projected.chain([&found.basis[..]]).collect();
            Ok(bits(&parts, &found.eigenvalues))
        }
    };
    let weights = move || [tall.weight(), wide.weight()];
    vec![
        (
            "singular vectors",
            Box::new(factors(tall, Path::Svd, false)),
            &["multiply", "right singular"],
        ),
        (
            "eigenvectors",
            Box::new(factors(tall, Path::Gram, false)),
            &["eigen", "gram", "multiply"],
        ),
        (
            "of a long weight under a gauge",
            Box::new(factors(tall, Path::Gram, true)),
            &["eigen", "gram", "multiply", "multiply lower"],
        ),
        (
            "of a short weight under a gauge",
            Box::new(factors(wide, Path::Gram, true)),
            &["eigen", "multiply"],
        ),
        (
            "a basis",
            Box::new(basis(false)),
            &["eigen", "gram", "multiply"],
        ),
        (
            "a basis under a gauge",
            Box::new(basis(true)),
            &["eigen", "gram", "multiply", "multiply lower"],
        ),
        (
            "values",
            Box::new(|algebra| Ok(bits(&[], &singular_values(tall.weight(), algebra)?))),
            &["eigenvalues", "gram"],
        ),
        (
            "values under a gauge",
            Box::new(move |algebra| {
                let values = gauged_singular_values(wide.weight(), &whiten()?, algebra)?;
                Ok(bits(&[], &values))
            }),
            &["eigenvalues", "multiply"],
        ),
        (
            "values in common",
            Box::new(move |algebra| {
                let weighting = BasisWeighting::Normalised;
                let values = shared_singular_values(&weights(), weighting, algebra)?;
                Ok(bits(&[], &values))
            }),
            &["eigenvalues", "gram"],
        ),
        (
            "components",
            Box::new(move |algebra| {
                let found = shared_components(&weights()[1..], BasisWeighting::Equal, algebra)?;
                Ok(bits(&[], &[&found.basis[..], &found.energies[0]].concat()))
            }),
            &["eigen", "multiply"],
        ),
        (
            "an axiom gauge",
            Box::new(move |algebra| {
                let slot = |weight: &'a Dense, rank| AxiomSlot {
                    weight: weight.weight(),
                    rank,
                    side: Side::Read,
                };
                let options = AxiomOptions {
                    iterations: 2,
                    ..AxiomOptions::default()
                };
                let found = axiom_gauge(&[slot(tall, 5), slot(wide, 6)], options, algebra)?;
                Ok(bits(&[], &found.entries))
            }),
            &["eigen", "gram", "multiply"],
        ),
    ]
}

#[test]
fn an_algebra_is_asked_for_all_that_takes_time_and_its_errors_are_told() {
    let (tall, wide) = (Dense::normal(150, 80, 1), Dense::normal(66, 80, 2));
    let moment = Moment::new(80, 3);
    for (name, work, expected) in all(&tall, &wide, &moment) {
        let asked = Asked::default();
        assert_eq!(work(&asked).unwrap(), work(&Host).unwrap(), "{name}");
        assert_eq!(asked.sorted(), expected, "{name}");
        // Whatever is refused, nothing is made of the rest.
        let questions = asked.asked.lock().unwrap().clone();
        for (from, question) in questions.iter().enumerate() {
            let refusing = Asked {
                refuses_from: Some(from),
                ..Asked::default()
            };
            let message = (*question).to_owned();
            let refused = work(&refusing).unwrap_err();
            assert_eq!(refused, FactoriseError::Device { message }, "{name}");
        }
    }
}
