//! Models of a run: target and draft.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use htc_formats::htz::{Digest, Htz, MAGIC};
use htc_formats::learnt::TrainedDraft;
use htc_formats::source::ModelFile;
use htc_loader::adapt::{AdaptOptions, Adaptation};
use htc_loader::dial::{ActiveFraction, ActiveSetting};
use htc_loader::sampling::Sampler;
use htc_loader::speculate::{DraftLength, Speculator};
use htc_loader::{Backend, Model, Pool, Session};

use super::super::{Failure, InFile as _, open_included_source, open_model, setting_for_fraction};
use crate::app::cli::{AdaptArg, DraftModel, ReferenceModel, RunArgs};
use crate::system::disk;

pub(super) struct Models {
    pub path: PathBuf,
    pub model: Arc<Model>,
    pub fraction: Option<ActiveFraction>,
    pub draft: Option<Draft>,
}

pub(super) struct Draft {
    pub path: PathBuf,
    /// `None` if the model drafts for itself.
    pub model: Option<Arc<Model>>,
    setting: ActiveSetting,
}

impl Models {
    pub fn open(args: &RunArgs) -> Result<Models, Failure> {
        if let Some(verifier) = &args.verifier {
            return Models::open_with_verifier(args, verifier);
        }
        let model = open_model(args.model.path())?;
        let draft = match &args.draft {
            None => None,
            Some(DraftModel::SelfDraft(fraction)) => Some(Draft {
                path: args.model.path().to_owned(),
                setting: setting_for_fraction(&model, Some(*fraction))
                    .in_file(args.model.path())?,
                model: None,
            }),
            Some(DraftModel::Model(path)) => Some(Draft {
                path: path.clone(),
                setting: ActiveSetting::FULL,
                model: Some(open_model(path)?),
            }),
        };
        Ok(Models {
            path: args.model.path().to_owned(),
            model,
            fraction: args.fraction,
            draft,
        })
    }

    /// Returns the target, and the draft if it is another model.
    pub fn iter(&self) -> impl Iterator<Item = &Model> {
        let draft = self.draft.as_ref().and_then(Draft::model);
        [&*self.model].into_iter().chain(draft)
    }

    fn open_with_verifier(args: &RunArgs, verifier: &ReferenceModel) -> Result<Models, Failure> {
        let fraction = match &args.draft {
            None => None,
            Some(DraftModel::SelfDraft(fraction)) => Some(*fraction),
            Some(DraftModel::Model(_)) => return Err(Failure::TwoDrafts),
        };
        let draft = open_model(args.model.path())?;
        let (path, model) = match verifier {
            ReferenceModel::Source => (
                args.model.path().to_owned(),
                open_included_source(args.model.path(), &draft)?,
            ),
            ReferenceModel::Model(path) => (path.clone(), open_source(path, &draft, args)?),
        };
        Ok(Models {
            path,
            model,
            fraction: args.fraction,
            draft: Some(Draft {
                path: args.model.path().to_owned(),
                setting: setting_for_fraction(&draft, fraction).in_file(args.model.path())?,
                model: Some(draft),
            }),
        })
    }
}

fn open_source(verifier: &Path, draft: &Model, args: &RunArgs) -> Result<Arc<Model>, Failure> {
    if !draft
        .file()
        .files
        .iter()
        .all(|file| file.starts_with(&MAGIC))
    {
        return Err(Failure::NoSource(args.model.path().to_owned()));
    }
    let expected = Htz::open(args.model.path())?
        .manifest()
        .provenance
        .source_sha256;
    let model = open_model(verifier)?;
    let found = model.file().digest();
    if found != expected {
        return Err(Failure::OtherSource {
            draft: args.model.path().to_owned(),
            verifier: verifier.to_owned(),
            expected,
            found,
        });
    }
    Ok(model)
}

impl Draft {
    pub fn model(&self) -> Option<&Model> {
        self.model.as_deref()
    }

    /// `other` is a session of a separate draft model.
    pub fn speculator<B: Backend>(
        &self,
        model: &Model<B>,
        other: Option<Session<B>>,
        length: DraftLength,
        sampler: &Sampler,
    ) -> Result<Speculator<B>, Failure> {
        let speculator = match other {
            None => Speculator::with_same_model(self.setting, length, sampler),
            Some(mut draft) => {
                draft.set(self.setting);
                Speculator::with_draft_model(draft, model, length, sampler)
            }
        };
        speculator.in_file(&self.path)
    }
}

pub(super) struct AdaptationFile {
    path: PathBuf,
    digests: [Digest; 2],
}

impl AdaptationFile {
    pub fn save(&self, adaptation: &Adaptation) -> Result<(), Failure> {
        let [draft, model] = self.digests;
        Ok(adaptation.state(draft, model).write(&self.path)?)
    }
}

pub(super) fn adaptation(
    args: &RunArgs,
    models: &Models,
    pool: &Arc<Pool>,
) -> Result<Option<(Adaptation, Option<AdaptationFile>)>, Failure> {
    let Some(draft) = &models.draft else {
        return match args.adapt {
            AdaptArg::Off if args.adapt_state.is_none() && args.draft_length.is_none() => Ok(None),
            _ => Err(Failure::NoDraft),
        };
    };
    let file = draft.model.as_ref().unwrap_or(&models.model).file();
    let of_model = models.model.file();
    let adaptation = match args.adapt {
        AdaptArg::Off if args.adapt_state.is_some() => return Err(Failure::StateWithoutAdaptation),
        AdaptArg::Off => return Ok(None),
        AdaptArg::Oja => Adaptation::oja(file, draft.setting, of_model, AdaptOptions::oja(), pool),
        AdaptArg::Gradient => Adaptation::gradient(file, AdaptOptions::gradient()),
    };
    let mut adaptation = adaptation.in_file(&draft.path)?;
    let Some(path) = &args.adapt_state else {
        return Ok(Some((adaptation, None)));
    };
    disk::check_writable(path)?;
    let digests = [file, of_model].map(ModelFile::digest);
    if let Some(learnt) = TrainedDraft::read(path)? {
        let restored = adaptation.restore(&learnt, digests[0], digests[1]);
        restored.in_file(path)?;
    }
    let path = path.clone();
    Ok(Some((adaptation, Some(AdaptationFile { path, digests }))))
}
