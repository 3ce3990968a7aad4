//! Reads an artifact without the program under test.

use std::ops::Range;
use std::path::Path;

use htc_formats::block;
use htc_formats::htz::{HEADER_BYTES, Htz, Manifest};
use htc_formats::model::MatrixId;
use serde_json::Value;

use crate::float64::Matrix;

/// Returns the id of a projection, given by its name in plans and options.
pub fn id(layer: usize, projection: &str) -> MatrixId {
    let projection = projection.parse().unwrap();
    MatrixId::Projection { layer, projection }
}

/// Returns layer and name of the projection that a record is about.
pub fn place(record: &Value) -> (usize, String) {
    let id: MatrixId = record["id"].as_str().unwrap().parse().unwrap();
    (id.layer().unwrap(), id.projection().unwrap().to_string())
}

/// An artifact in memory.
#[derive(Debug)]
pub struct Artifact {
    /// Bytes of the file.
    pub bytes: Vec<u8>,
    /// Its manifest.
    pub manifest: Manifest,
}

impl Artifact {
    /// Opens an artifact.
    pub fn open(path: &Path) -> Artifact {
        let bytes = std::fs::read(path).unwrap();
        let manifest = Htz::parse(&bytes).unwrap().manifest().clone();
        Artifact { bytes, manifest }
    }

    /// Returns true if it differs from another only in its quality record.
    pub fn equals_except_quality(&self, other: &Artifact) -> bool {
        let but = |of: &Artifact| Manifest {
            quality: None,
            dial: Vec::new(),
            ..of.manifest.clone()
        };
        let data = |of: &'_ Artifact| of.manifest_range().end;
        but(self) == but(other) && self.bytes[data(self)..] == other.bytes[data(other)..]
    }

    /// Returns true if it has a tensor of a role.
    pub fn has(&self, role: &str) -> bool {
        self.manifest
            .tensors
            .iter()
            .any(|t| t.role.to_string() == role)
    }

    /// Returns the range of bytes of a tensor.
    #[track_caller]
    pub fn tensor_range(&self, role: &str) -> Range<usize> {
        let entry = self
            .manifest
            .tensors
            .iter()
            .find(|t| t.role.to_string() == role)
            .unwrap_or_else(|| panic!("no tensor {role}"));
        entry.offset as usize..(entry.offset + entry.length) as usize
    }

    /// Returns the bytes of a tensor.
    #[track_caller]
    pub fn tensor_bytes(&self, role: &str) -> &[u8] {
        &self.bytes[self.tensor_range(role)]
    }

    /// Decodes a tensor.
    #[track_caller]
    pub fn matrix(&self, role: &str) -> Matrix {
        let bytes = self.tensor_bytes(role);
        let role = role.parse().unwrap();
        let entry = self.manifest.tensor(role).unwrap();
        let (rows, cols) = (entry.rows as usize, entry.cols as usize);
        let mut values = vec![0.0; rows * cols];
        match &entry.codes {
            Some(codes) => {
                let bands = codes.view(rows, bytes).unwrap();
                for (row, values) in values.chunks_exact_mut(cols).enumerate() {
                    bands.decode_row(row, values).unwrap();
                }
            }
            None => block::decode(entry.dtype, bytes, &mut values).unwrap(),
        }
        Matrix::new(rows, cols, &values)
    }

    /// Returns the dense matrix that a projection's stored form represents.
    #[track_caller]
    pub fn dense_projection(&self, layer: usize, projection: &str) -> Matrix {
        let id = id(layer, projection);
        let part = |part: &str| format!("{id}.{part}");
        if self.has(&part("a")) {
            return self.matrix(&part("b")).times(&self.matrix(&part("a")));
        }
        if self.has(&part("projected")) {
            let group = match projection {
                "q" | "k" | "v" => "attn_qkv",
                _ => "ffn_gate_up",
            };
            let basis = self.matrix(&format!("blk.{layer}.{group}.basis"));
            return self.matrix(&part("projected")).times(&basis);
        }
        self.with_residual(self.matrix(&part("weight")), &id.to_string())
    }

    /// Returns the dense matrix that an untied head's stored form represents.
    #[track_caller]
    pub fn dense_head(&self) -> Matrix {
        if self.has("output.a") {
            return self.matrix("output.b").times(&self.matrix("output.a"));
        }
        self.with_residual(self.matrix("output.weight"), "output")
    }

    fn with_residual(&self, mut base: Matrix, name: &str) -> Matrix {
        let part = |part: &str| format!("{name}.residual_{part}");
        if self.has(&part("a")) {
            let lacking = self.matrix(&part("b")).times(&self.matrix(&part("a")));
            base.add(1.0, &lacking);
        }
        base
    }

    /// Returns the range of bytes of the manifest.
    pub fn manifest_range(&self) -> Range<usize> {
        let start = self.manifest.tensors[0].offset as usize;
        HEADER_BYTES..start
    }

    /// Returns the range of bytes of a section.
    pub fn section_range(&self, name: &str) -> Range<usize> {
        let entry = self.manifest.section(name).unwrap();
        entry.offset as usize..(entry.offset + entry.length) as usize
    }

    /// Returns the first byte of padding between two items.
    pub fn padding(&self) -> usize {
        let tensors = &self.manifest.tensors;
        let ends = tensors.iter().map(|t| t.offset + t.length);
        let sections = self.manifest.sections.iter().map(|s| s.offset);
        let starts = tensors.iter().skip(1).map(|t| t.offset).chain(sections);
        let gap = ends.zip(starts).find(|(end, start)| end < start);
        gap.unwrap().0 as usize
    }
}
