//! Tensors of a Hugging Face folder.

use std::collections::HashMap;

use super::{Reader, computed};
use crate::architecture::error::Result;
use crate::architecture::{BindError, ContainerTensor, ModelTensor, Naming, Remedy};
use crate::block;
use crate::model::{HyperParameters, Part, Role};
use crate::safetensors::{Contents, TensorInfo, is_computed_buffer};

const EMBEDDING: &str = "model.embed_tokens.weight";
const OUTPUT: &str = "lm_head.weight";

/// A safetensors file of a model.
#[derive(Clone, Copy, Debug)]
pub struct WeightFile<'a> {
    /// Index of the file within the model.
    pub index: usize,
    /// All bytes of the file.
    pub bytes: &'a [u8],
    /// Parsed header of the file.
    pub contents: &'a Contents,
}

struct Tensors<'a> {
    files: &'a [WeightFile<'a>],
    places: HashMap<&'a str, (usize, &'a TensorInfo)>,
}

impl<'a> Tensors<'a> {
    fn new(files: &'a [WeightFile<'a>]) -> Self {
        let mut places = HashMap::new();
        for (file, weights) in files.iter().enumerate() {
            for tensor in weights.contents.tensors() {
                places.insert(tensor.name.as_str(), (file, tensor));
            }
        }
        Tensors { files, places }
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        let tensors = self.files.iter().flat_map(|f| f.contents.tensors());
        tensors
            .map(|tensor| tensor.name.as_str())
            .filter(|name| !is_computed_buffer(name))
    }

    fn find(&self, name: &str) -> Result<Option<ContainerTensor>> {
        let Some((file, tensor)) = self.places.get(name) else {
            return Ok(None);
        };
        Ok(Some(ContainerTensor {
            shape: tensor.shape.clone(),
            dtype: tensor.dtype()?,
            file: self.files[*file].index,
            range: tensor.range.clone(),
        }))
    }

    fn value(&self, name: &str) -> Option<(&'a TensorInfo, &'a [u8])> {
        let (file, tensor) = *self.places.get(name)?;
        Some((tensor, &self.files[file].bytes[tensor.range.clone()]))
    }
}

impl Reader<'_> {
    /// Binds the tensors of a model; norm weights stored minus one are converted.
    pub(super) fn bind(
        &self,
        hyper: &HyperParameters,
        files: &[WeightFile<'_>],
    ) -> Result<Vec<ModelTensor>> {
        let Reader {
            config,
            model,
            architecture,
        } = self;
        let tensors = Tensors::new(files);
        let tied = config.flag("tie_word_embeddings", model.tie_word_embeddings)?;
        if tied {
            check_tied(&tensors)?;
        } else if !tensors.places.contains_key(OUTPUT) {
            return Err(BindError::MissingTensor {
                tensor: OUTPUT.to_owned(),
                remedy: Remedy::Tie,
            });
        }
        let unused = |name: &str| tied && name == OUTPUT;
        let mut bound = architecture.bind_tensors(
            hyper,
            Naming::HuggingFace,
            tensors.names().filter(|name| !unused(name)),
            |name| {
                if unused(name) {
                    Ok(None)
                } else {
                    tensors.find(name)
                }
            },
        )?;
        self.check_biases(hyper, &tensors)?;
        if architecture.traits.norms_less_one {
            for tensor in bound.iter_mut().filter(|tensor| is_norm(tensor.role)) {
                *tensor = plus_one(tensor, &tensors)?;
            }
        }
        Ok(bound)
    }

    fn check_biases(&self, hyper: &HyperParameters, tensors: &Tensors<'_>) -> Result<()> {
        let Reader {
            config,
            model,
            architecture,
        } = self;
        for (projections, key) in model.biases {
            let stated = match key {
                Some(key) => config.flag(key, false)?,
                None => false,
            };
            for tensor in architecture.expected(hyper.layers, 0, Naming::HuggingFace) {
                let is_bias = |role: &Role| matches!(role, Role::Linear { projection, part: Part::Bias, .. } if projections.contains(projection));
                if !tensor.holds.iter().any(|(role, _)| is_bias(role)) {
                    continue;
                }
                let name = tensor.name;
                match (tensors.places.contains_key(name.as_str()), stated) {
                    (true, true) | (false, false) => {}
                    (false, true) => {
                        return Err(BindError::MissingTensor {
                            tensor: name,
                            remedy: key.map_or(Remedy::Folder, |key| Remedy::Bias { key }),
                        });
                    }
                    (true, false) => {
                        return Err(BindError::Bias {
                            tensor: name,
                            model_type: model.name,
                            key: *key,
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

/// With tied embeddings, a file may have both tensors if they are equal.
fn check_tied(tensors: &Tensors<'_>) -> Result<()> {
    let (Some((output, a)), Some((embedding, b))) =
        (tensors.value(OUTPUT), tensors.value(EMBEDDING))
    else {
        return Ok(());
    };
    if (output.element, &output.shape, a) == (embedding.element, &embedding.shape, b) {
        return Ok(());
    }
    Err(BindError::Tied {
        output: OUTPUT,
        embedding: EMBEDDING,
    })
}

fn is_norm(role: Role) -> bool {
    matches!(
        role,
        Role::AttentionNorm { .. }
            | Role::QueryNorm { .. }
            | Role::KeyNorm { .. }
            | Role::PostAttentionNorm { .. }
            | Role::FfnNorm { .. }
            | Role::PostFfnNorm { .. }
            | Role::OutputNorm
    )
}

fn plus_one(norm: &ModelTensor, tensors: &Tensors<'_>) -> Result<ModelTensor> {
    let mut values = vec![0.0; norm.cols];
    let bytes = tensors
        .value(&norm.name)
        .map_or(&[][..], |(_, bytes)| bytes);
    block::decode(norm.dtype, bytes, &mut values).map_err(|error| BindError::Numbers {
        tensor: norm.name.clone(),
        error,
    })?;
    for value in &mut values {
        *value += 1.0;
    }
    Ok(computed(norm.name.clone(), norm.role, &values))
}
