use std::collections::BTreeMap;
use std::sync::Mutex;

use faer::{Accum, Mat, MatMut, MatRef};

use super::super::{
    Algebra, AxiomOptions, AxiomProjection, BasisOptions, BasisWeighting, FactoriseError, Gauge,
    GramAccumulator, Host, LeadingVectors, LowRankOptions, ResidualSide, Sink, SvdMethod, Weight,
    axiom_gauge, gauged_singular_values, low_rank_with, principal_basis, shared_basis_with,
    shared_components, shared_singular_values, singular_values,
};
use super::Dense;
use super::gauge::Moment;

/// Fails from call number `refuses_from` on.
#[derive(Debug, Default)]
struct RecordingAlgebra {
    calls: Mutex<Vec<&'static str>>,
    refuses_from: Option<usize>,
}

impl RecordingAlgebra {
    fn record_call(&self, operation: &'static str) -> Result<(), FactoriseError> {
        let mut calls = self.calls.lock().unwrap();
        calls.push(operation);
        match self.refuses_from {
            Some(from) if calls.len() > from => Err(FactoriseError::Device {
                message: operation.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn counts(&self) -> String {
        let mut counts = BTreeMap::new();
        for operation in self.calls.lock().unwrap().iter() {
            *counts.entry(*operation).or_insert(0) += 1;
        }
        let counts = counts
            .iter()
            .map(|(operation, count)| format!("{operation} {count}"));
        counts.collect::<Vec<_>>().join(", ")
    }
}

impl Algebra for RecordingAlgebra {
    fn name(&self) -> String {
        "asked".to_owned()
    }

    fn eigen(&self, matrix: Mat<f64>, k: usize) -> Result<LeadingVectors, FactoriseError> {
        self.record_call("eigen")?;
        Host.eigen(matrix, k)
    }

    fn eigenvalues(&self, matrix: Mat<f64>) -> Result<Vec<f64>, FactoriseError> {
        self.record_call("eigenvalues")?;
        Host.eigenvalues(matrix)
    }

    fn right_singular_vectors(
        &self,
        tall: Mat<f64>,
        k: usize,
    ) -> Result<LeadingVectors, FactoriseError> {
        self.record_call("right singular")?;
        Host.right_singular_vectors(tall, k)
    }

    fn multiply(
        &self,
        out: MatMut<'_, f64>,
        accumulate: Accum,
        x: MatRef<'_, f64>,
        y: MatRef<'_, f64>,
        scale: f64,
    ) -> Result<(), FactoriseError> {
        self.record_call("multiply")?;
        Host.multiply(out, accumulate, x, y, scale)
    }

    fn multiply_lower(
        &self,
        x: MatRef<'_, f64>,
        y: MatRef<'_, f64>,
    ) -> Result<Mat<f64>, FactoriseError> {
        self.record_call("multiply lower")?;
        Host.multiply_lower(x, y)
    }

    fn new_gram(&self, order: usize) -> Result<Box<dyn GramAccumulator>, FactoriseError> {
        self.record_call("gram")?;
        Host.new_gram(order)
    }
}

type Computation<'a> = Box<dyn Fn(&dyn Algebra) -> Result<Vec<u64>, FactoriseError> + 'a>;

type Work<'a> = (&'static str, Computation<'a>, &'static str);

fn bits(parts: &[&[f32]], values: &[f64]) -> Vec<u64> {
    let parts = parts.iter().flat_map(|part| part.iter());
    let parts = parts.map(|value| u64::from(value.to_bits()));
    parts.chain(values.iter().map(|v| v.to_bits())).collect()
}

#[derive(Clone, Copy)]
struct Inputs<'a> {
    tall: &'a Dense,
    wide: &'a Dense,
    moment: &'a Moment,
}

impl<'a> Inputs<'a> {
    fn gauge(self, gauged: bool) -> Result<Gauge, FactoriseError> {
        if gauged {
            Gauge::whiten(self.moment.as_second_moment(), 0.01)
        } else {
            Ok(Gauge::None)
        }
    }

    fn weights(self) -> [Weight<'a>; 2] {
        [self.tall.weight(), self.wide.weight()]
    }

    fn factors(self, weight: &'a Dense, path: SvdMethod, gauged: bool) -> Computation<'a> {
        Box::new(move |algebra| {
            let options = LowRankOptions {
                method: path,
                input: &self.gauge(gauged)?,
                algebra,
                ..LowRankOptions::default()
            };
            let found = low_rank_with(weight.weight(), 7, &options)?;
            Ok(bits(&[&found.a, &found.b], &found.singular_values))
        })
    }

    fn basis(self, gauged: bool, protected: bool) -> Computation<'a> {
        Box::new(move |algebra| {
            let direction = vec![1.0; self.tall.cols];
            let sink = Sink {
                direction: &direction,
                threshold: f64::INFINITY,
            };
            let options = BasisOptions {
                gauge: &self.gauge(gauged)?,
                sink: protected.then_some(sink),
                algebra,
                ..BasisOptions::default()
            };
            let found = shared_basis_with(&self.weights(), 9, &options)?;
            let projected = found.projected.iter().map(Vec::as_slice);
            let parts: Vec<&[f32]> = projected.chain([&found.basis[..]]).collect();
            Ok(bits(&parts, &found.eigenvalues))
        })
    }

    fn axiom(self, weight: &'a Dense) -> Computation<'a> {
        Box::new(move |algebra| {
            let projection = AxiomProjection {
                weight: weight.weight(),
                rank: 5,
                side: ResidualSide::Read,
            };
            let options = AxiomOptions {
                evaluations: 2,
                ..AxiomOptions::default()
            };
            Ok(bits(
                &[],
                &axiom_gauge(&[projection], options, algebra)?.entries,
            ))
        })
    }

    fn factorisations(self) -> Vec<Work<'a>> {
        let (tall, wide) = (self.tall, self.wide);
        vec![
            (
                "singular vectors",
                self.factors(tall, SvdMethod::Svd, false),
                "multiply 1, right singular 1",
            ),
            (
                "eigenvectors",
                self.factors(tall, SvdMethod::Gram, false),
                "eigen 1, gram 1, multiply 1",
            ),
            (
                "of a long weight under a gauge",
                self.factors(tall, SvdMethod::Gram, true),
                "eigen 2, gram 1, multiply 4, multiply lower 2",
            ),
            (
                "of a short weight under a gauge",
                self.factors(wide, SvdMethod::Gram, true),
                "eigen 1, multiply 4",
            ),
            (
                "a basis",
                self.basis(false, false),
                "eigen 1, gram 1, multiply 2",
            ),
            (
                "a basis beside a direction",
                self.basis(false, true),
                "eigen 2, gram 1, multiply 2",
            ),
            (
                "a basis under a gauge",
                self.basis(true, false),
                "eigen 2, gram 2, multiply 6, multiply lower 2",
            ),
            (
                "an axiom gauge of a long weight",
                self.axiom(tall),
                "eigen 2, gram 1",
            ),
            (
                "an axiom gauge of a short weight",
                self.axiom(wide),
                "eigen 2, gram 2, multiply 2",
            ),
        ]
    }

    fn spectra(self) -> Vec<Work<'a>> {
        let weighting = BasisWeighting::Normalised;
        let (tall, wide) = (self.tall, self.wide);
        vec![
            (
                "values",
                Box::new(|algebra| Ok(bits(&[], &singular_values(tall.weight(), algebra)?))),
                "eigenvalues 1, gram 1",
            ),
            (
                "values under a gauge",
                Box::new(move |algebra| {
                    let gauge = self.gauge(true)?;
                    let values = gauged_singular_values(wide.weight(), &gauge, algebra)?;
                    Ok(bits(&[], &values))
                }),
                "eigenvalues 1, multiply 3",
            ),
            (
                "values in common",
                Box::new(move |algebra| {
                    let values = shared_singular_values(&self.weights(), weighting, algebra)?;
                    Ok(bits(&[], &values))
                }),
                "eigenvalues 1, gram 1",
            ),
            (
                "components",
                Box::new(move |algebra| {
                    let some = &self.weights()[1..];
                    let found = shared_components(some, BasisWeighting::Equal, algebra)?;
                    Ok(bits(&[], &[&found.basis[..], &found.energies[0]].concat()))
                }),
                "eigen 1, multiply 3",
            ),
            (
                "principal components",
                Box::new(move |algebra| {
                    let found =
                        principal_basis(self.moment.as_second_moment(), |x| x as f32, algebra)?;
                    Ok(bits(&[], &[found.components, found.energies].concat()))
                }),
                "eigen 1",
            ),
        ]
    }
}

#[test]
fn factorisations_use_the_algebra_and_pass_on_its_errors() {
    let (tall, wide) = (Dense::normal(150, 80, 1), Dense::normal(66, 80, 2));
    let moment = Moment::new(80, 3);
    let inputs = Inputs {
        tall: &tall,
        wide: &wide,
        moment: &moment,
    };
    let all = inputs.factorisations().into_iter().chain(inputs.spectra());
    for (name, work, expected) in all {
        let calls = RecordingAlgebra::default();
        assert_eq!(work(&calls).unwrap(), work(&Host).unwrap(), "{name}");
        assert_eq!(calls.counts(), expected, "{name}");
        let questions = calls.calls.lock().unwrap().clone();
        for (from, question) in questions.iter().enumerate() {
            let refusing = RecordingAlgebra {
                refuses_from: Some(from),
                ..RecordingAlgebra::default()
            };
            let message = (*question).to_owned();
            let refused = work(&refusing).unwrap_err();
            assert_eq!(refused, FactoriseError::Device { message }, "{name}");
        }
    }
}
