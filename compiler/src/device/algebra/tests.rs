use super::*;
use crate::math::Host;
use crate::system::random::Rng;

#[derive(Debug)]
pub(in crate::device) struct Plain;

impl Plain {
    fn matrix(numbers: &[f64], rows: usize, columns: usize) -> Mat<f64> {
        MatRef::from_column_major_slice(numbers, rows, columns).to_owned()
    }
}

impl LinearAlgebra for Plain {
    fn name(&self) -> String {
        "plain".to_owned()
    }

    fn symmetric_eigen(
        &self,
        matrix: &mut [f64],
        values: &mut [f64],
        vectors: bool,
    ) -> Result<(), DeviceError> {
        let n = values.len();
        let found = Host.eigen(Plain::matrix(matrix, n, n), n).unwrap();
        for (to, value) in values.iter_mut().zip(found.values.iter().rev()) {
            *to = *value;
        }
        // The content is unspecified without vectors.
        matrix.fill(f64::NAN);
        if vectors {
            let ascending = Mat::from_fn(n, n, |i, j| found.vectors[(i, n - 1 - j)]);
            matrix.copy_from_slice(&to_column_major(ascending.as_ref()));
        }
        Ok(())
    }

    fn right_singular_vectors(
        &self,
        tall: &[f64],
        values: &mut [f64],
        right: &mut [f64],
    ) -> Result<(), DeviceError> {
        let n = values.len();
        if tall.iter().any(|value| !value.is_finite()) {
            return Err(DeviceError::NoConvergence { order: n });
        }
        let tall = Plain::matrix(tall, tall.len() / n, n);
        let found = Host.right_singular_vectors(tall, n).unwrap();
        values.copy_from_slice(&found.values);
        right.copy_from_slice(&to_column_major(found.vectors.transpose()));
        Ok(())
    }

    fn multiply(
        &self,
        shape: ProductShape,
        left: &[f64],
        right: &[f64],
        out: &mut [f64],
    ) -> Result<(), DeviceError> {
        let left = Plain::matrix(left, shape.rows, shape.inner);
        let right = Plain::matrix(right, shape.inner, shape.columns);
        out.copy_from_slice(&to_column_major((left * right).as_ref()));
        Ok(())
    }

    fn new_gram(&self, order: usize) -> Result<Box<dyn linear::GramMatrix>, DeviceError> {
        Ok(Box::new(PlainGram(Mat::zeros(order, order))))
    }
}

#[derive(Debug)]
struct PlainGram(Mat<f64>);

impl linear::GramMatrix for PlainGram {
    fn add(&mut self, scale: f64, vectors: &[f64]) -> Result<(), DeviceError> {
        let order = self.0.nrows();
        let vectors = Plain::matrix(vectors, order, vectors.len() / order);
        self.0 += faer::Scale(scale) * (&vectors * vectors.transpose());
        Ok(())
    }

    fn scale(&mut self, factor: f64) -> Result<(), DeviceError> {
        self.0 *= faer::Scale(factor);
        Ok(())
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<(), DeviceError> {
        let order = self.0.nrows();
        let lower = |i: usize, j: usize| {
            if i < first + j {
                0.0
            } else {
                self.0[(i, first + j)]
            }
        };
        let lower = Mat::from_fn(order, out.len() / order, lower);
        out.copy_from_slice(&to_column_major(lower.as_ref()));
        Ok(())
    }
}

fn random(rows: usize, columns: usize) -> Mat<f64> {
    let mut rng = Rng((rows * 1000 + columns) as u64);
    Mat::from_fn(rows, columns, |_, _| rng.normal())
}

fn close(found: &Mat<f64>, expected: &Mat<f64>) {
    let difference = (found - expected).norm_max();
    assert!(difference < 1e-10, "{difference}");
}

#[test]
fn device_algebra_matches_the_host() {
    let device = DeviceAlgebra(Box::new(Plain));
    let x = random(7, 5);
    let square = x.transpose() * &x;
    let (found, expected) = (
        device.eigen(square.clone(), 2),
        Host.eigen(square.clone(), 2),
    );
    let (found, expected) = (found.unwrap(), expected.unwrap());
    assert_eq!(found.values, expected.values);
    assert_eq!(found.vectors, expected.vectors);
    let values = device.eigenvalues(square).unwrap();
    assert!(
        values
            .iter()
            .zip(&found.values)
            .all(|(a, b)| (a - b).abs() < 1e-12)
    );

    let (found, expected) = (
        device.right_singular_vectors(x.clone(), 3).unwrap(),
        Host.right_singular_vectors(x.clone(), 3).unwrap(),
    );
    assert_eq!(found.values, expected.values);
    assert_eq!(found.vectors, expected.vectors);

    let y = random(9, 4);
    let part = y.as_ref().submatrix(2, 1, 5, 3);
    for accumulate in [Accum::Replace, Accum::Add] {
        let (mut found, mut expected) = (random(7, 3), random(7, 3));
        let multiplied = device.multiply(found.as_mut(), accumulate, x.as_ref(), part, -2.0);
        multiplied.unwrap();
        let multiplied = Host.multiply(expected.as_mut(), accumulate, x.as_ref(), part, -2.0);
        multiplied.unwrap();
        close(&found, &expected);
    }
    let lower = device.multiply_lower(x.transpose(), x.as_ref()).unwrap();
    close(&lower, &(x.transpose() * &x));

    let sums = |algebra: &dyn Algebra| {
        let mut gram = algebra.new_gram(5).unwrap();
        gram.add_rows(0.5, x.as_ref()).unwrap();
        gram.scale(3.0).unwrap();
        gram.add_rows(1.0, y.as_ref().submatrix(0, 0, 5, 3).transpose())
            .unwrap();
        gram.finish().unwrap()
    };
    close(&sums(&device), &sums(&Host));
}

#[test]
fn device_errors_keep_their_message() {
    let device = DeviceAlgebra(Box::new(Plain));
    let nothing = Mat::from_fn(3, 2, |_, _| f64::NAN);
    let error = device.right_singular_vectors(nothing, 1).unwrap_err();
    assert_eq!(error, FactoriseError::NoConvergence { order: 2 });
    let told = device_error(DeviceError::Driver {
        operation: "decomposing",
        message: "CUSOLVER_STATUS_INTERNAL_ERROR".to_owned(),
    });
    let told = told.to_string();
    assert!(
        told.ends_with("decomposing: CUSOLVER_STATUS_INTERNAL_ERROR"),
        "{told}"
    );
}
