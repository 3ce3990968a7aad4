//! Speculative decoding: a cheaper model drafts tokens, and the model verifies them in one pass
//! (Leviathan, Kalman and Matias 2023; Chen et al. 2023).
//!
//! The draft is the same model with fewer active weights, which shares the mapping and the KV
//! cache, or another model with the same vocabulary. The output is the model's own: token for token
//! without temperature ([`Session::verify`]), and in distribution with one
//! ([`Sampler::verify_token`]).

mod pace;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use htc_formats::vocab::Vocabulary;

use crate::adapt::{ActivationRecorder, Adaptation};
use crate::backend::{Backend, Cpu};
use crate::dial::ActiveSetting;
use crate::error::{ExecError, Result};
use crate::exec::{Adapted, Session};
use crate::sampling::{Distribution, DraftVerdict, Sampler};

use pace::DraftLengthPolicy;
pub use pace::{DraftLength, MAX_DRAFT_LENGTH};

/// Describes the first difference of two vocabularies, if any.
pub fn vocabulary_difference(one: &Vocabulary, other: &Vocabulary) -> Option<String> {
    let numbers = [
        ("tokens", one.tokens.len(), other.tokens.len()),
        ("merges", one.merges.len(), other.merges.len()),
    ];
    for (what, one, other) in numbers {
        if one != other {
            return Some(format!("{one} {what} there, {other} here"));
        }
    }
    if one.model != other.model {
        return Some(format!(
            "its kind is {} there, {} here",
            one.model, other.model
        ));
    }
    let mut tokens = one.tokens.iter().zip(&other.tokens).enumerate();
    if let Some((token, (one, other))) = tokens.find(|(_, (one, other))| one != other) {
        let escape = |text: &str| text.escape_debug().to_string();
        let (one, other) = (escape(one), escape(other));
        return Some(format!(
            "token {token} is \"{one}\" there, \"{other}\" here"
        ));
    }
    let special = |v: &Vocabulary| (v.bos, v.eos, v.add_bos, v.pre);
    (special(one) != special(other)).then(|| "special tokens or the way to split words".to_owned())
}

/// Statistics of speculative decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SpeculationStats {
    /// Verification passes.
    pub rounds: u64,
    /// Drafted tokens.
    pub drafted: u64,
    /// Accepted tokens.
    pub accepted: u64,
    /// Tokens generated without a draft.
    pub without_draft: u64,
    /// Time of drafting.
    pub draft_time: Duration,
    /// Time of passes of the model.
    pub verify_time: Duration,
    /// Part of [`verify_time`](SpeculationStats::verify_time) without a draft.
    pub without_draft_time: Duration,
}

impl SpeculationStats {
    /// Returns the fraction of accepted tokens; `None` if none was drafted.
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }

    /// Returns the ratio of tokens per second to those without a draft, if known; excludes
    /// adaptation.
    pub fn speed_up(&self) -> Option<f64> {
        let tokens = (self.without_draft + self.rounds + self.accepted) as f64;
        let without = self.without_draft_time.as_secs_f64() / self.without_draft as f64;
        let found = tokens * without / (self.draft_time + self.verify_time).as_secs_f64();
        (self.rounds > 0 && self.without_draft > 0 && found.is_finite()).then_some(found)
    }
}

enum DraftSource<B: Backend> {
    SameModel {
        setting: ActiveSetting,
        adapted: Option<Box<Adapted<B>>>,
    },
    SeparateModel(Box<Session<B>>),
}

/// Drafter for a session; tied to one sequence.
pub struct Speculator<B: Backend = Cpu> {
    drafter: DraftSource<B>,
    pace: DraftLengthPolicy,
    sampler: Sampler,
    read: Vec<u32>,
    drafted: Vec<u32>,
    drafts: Vec<Distribution>,
    own: Distribution,
    adaptation: Option<Box<Adaptation>>,
    done: SpeculationStats,
}

impl<B: Backend> Speculator<B> {
    /// Creates a drafter that uses the session's own model with fewer active weights.
    pub fn with_same_model(
        setting: ActiveSetting,
        length: DraftLength,
        sampler: &Sampler,
    ) -> Result<Self, ExecError> {
        let adapted = None;
        Speculator::new(DraftSource::SameModel { setting, adapted }, length, sampler)
    }

    /// Creates a drafter from a fresh session of another model, with any KV cache, for sessions of
    /// `model`.
    pub fn with_draft_model(
        draft: Session<B>,
        model: &crate::Model<B>,
        length: DraftLength,
        sampler: &Sampler,
    ) -> Result<Self, ExecError> {
        let (expected, found) = (model.hyper().vocabulary, draft.model().hyper().vocabulary);
        if expected != found {
            return Err(ExecError::DraftVocabulary { expected, found });
        }
        let vocabularies = [draft.model().file(), model.file()].map(|file| &file.vocabulary);
        let differs = match vocabularies {
            [Ok(one), Ok(other)] => vocabulary_difference(one, other),
            [Err(one), Err(other)] => (one.to_string() != other.to_string())
                .then(|| format!("it cannot be read: {one}; and there: {other}")),
            [Err(error), Ok(_)] => Some(format!("that of the draft cannot be read: {error}")),
            [Ok(_), Err(error)] => Some(format!("that of the model cannot be read: {error}")),
        };
        if let Some(what) = differs {
            return Err(ExecError::DraftTokenizer { what });
        }
        if draft.position() != 0 {
            let (expected, found) = (0, draft.position());
            return Err(ExecError::DraftPosition { expected, found });
        }
        Speculator::new(DraftSource::SeparateModel(Box::new(draft)), length, sampler)
    }

    fn new(
        drafter: DraftSource<B>,
        length: DraftLength,
        sampler: &Sampler,
    ) -> Result<Self, ExecError> {
        if let DraftLength::Fixed(length) = length
            && !(1..=MAX_DRAFT_LENGTH).contains(&length)
        {
            return Err(ExecError::DraftLength(length));
        }
        Ok(Speculator {
            drafter,
            pace: DraftLengthPolicy::new(length),
            sampler: sampler.with_other_stream(),
            read: Vec::new(),
            drafted: Vec::new(),
            drafts: Vec::new(),
            own: Distribution::default(),
            adaptation: None,
            done: SpeculationStats::default(),
        })
    }

    /// Adds online adaptation from rejected tokens.
    pub fn with_adaptation(mut self, adaptation: Adaptation) -> Self {
        self.adaptation = Some(Box::new(adaptation));
        self
    }

    /// Returns the adaptation, if any.
    pub fn adaptation(&self) -> Option<&Adaptation> {
        self.adaptation.as_deref()
    }

    /// Returns the statistics so far.
    pub fn stats(&self) -> SpeculationStats {
        self.done
    }

    /// Returns the session of a separate draft model.
    pub fn draft_session(&self) -> Option<&Session<B>> {
        match &self.drafter {
            DraftSource::SameModel { .. } => None,
            DraftSource::SeparateModel(draft) => Some(draft),
        }
    }

    /// Returns the session of a separate draft model, e.g. to measure it; call
    /// [`reset`](Speculator::reset) before and after.
    pub fn draft_session_mut(&mut self) -> Option<&mut Session<B>> {
        match &mut self.drafter {
            DraftSource::SameModel { .. } => None,
            DraftSource::SeparateModel(draft) => Some(draft),
        }
    }

    pub(crate) fn read_prompt(&mut self, tokens: &[u32]) -> Result<()> {
        self.read.extend_from_slice(tokens);
        if let DraftSource::SeparateModel(draft) = &mut self.drafter {
            let available = draft.limit().min(self.read.len());
            let behind = self.read.get(draft.position()..available).unwrap_or(&[]);
            if !behind.is_empty() {
                draft.read_prompt(behind)?;
            }
        }
        Ok(())
    }

    /// Forgets the sequence, as [`Session::reset`]; keeps measurements.
    pub fn reset(&mut self) {
        self.read.clear();
        if let DraftSource::SeparateModel(draft) = &mut self.drafter {
            draft.reset();
        }
    }

    pub(crate) fn position(&self) -> usize {
        self.read.len()
    }

    pub(crate) fn truncate(&mut self, position: usize) -> Result<()> {
        self.read.truncate(position);
        match &mut self.drafter {
            DraftSource::SeparateModel(draft) if draft.position() > position => {
                draft.truncate(position)
            }
            _ => Ok(()),
        }
    }

    /// Generates 1 to `most` tokens after `unread` into `out`; the session has then read all but
    /// the last.
    pub(crate) fn round(
        &mut self,
        session: &mut Session<B>,
        sampler: &mut Sampler,
        unread: u32,
        most: usize,
        out: &mut VecDeque<u32>,
    ) -> Result<(), ExecError> {
        let start = session.position();
        let available = session.limit().saturating_sub(start + 1);
        let most = most
            .saturating_sub(1)
            .min(available)
            .min(session.batch() - 1);
        let length = self
            .pace
            .next_length(most.min(self.free_draft_positions()), self.unread_tokens());
        let mut seen = match length {
            0 => None,
            _ => self.adaptation.as_deref().map(Adaptation::new_recorder),
        };
        self.apply_adaptation(session, length)?;
        if length > 0 {
            let begun = Instant::now();
            self.catch_up()?;
            self.done.draft_time += begun.elapsed();
        }
        let begun = Instant::now();
        self.draft(session, unread, length, &mut seen)?;
        let draft = begun.elapsed();
        let begun = Instant::now();
        let mut row = vec![unread];
        row.extend_from_slice(&self.drafted);
        let logits = match &mut seen {
            Some(seen) => session.verify(&row, seen.verifier_tap())?,
            None => session.verify(&row, &mut ())?,
        };
        let width = logits.len() / row.len();
        let (mut accepted, mut next) = (0, None);
        for (logits, draft) in logits.chunks_exact(width).zip(&self.drafts[..length]) {
            let token = self.drafted[accepted];
            sampler.distribution(logits, &mut self.own)?;
            match sampler.verify_token(&self.own, draft, token) {
                DraftVerdict::Accepted => accepted += 1,
                DraftVerdict::Replaced(token) => {
                    next = Some(token);
                    break;
                }
            }
        }
        let last = &logits[accepted * width..][..width];
        let next = match next {
            Some(token) => token,
            None => sampler.sample(last)?,
        };
        let mut seen = seen.filter(|_| accepted < length);
        if let Some(seen) = &mut seen {
            seen.record_rejection(last);
        }
        let verify = begun.elapsed();
        session.truncate(start + 1 + accepted)?;
        self.read.push(unread);
        self.read.extend_from_slice(&self.drafted[..accepted]);
        let read = self.read.len();
        self.truncate(read)?;
        out.extend(&self.drafted[..accepted]);
        out.push_back(next);
        self.record_round(length, accepted, draft, verify);
        if let (Some(adaptation), Some(seen)) = (self.adaptation.as_deref_mut(), seen) {
            adaptation.queue_rejection(seen, accepted);
        }
        Ok(())
    }

    fn unread_tokens(&self) -> usize {
        let unread = |draft: &Session<B>| self.read.len().saturating_sub(draft.position());
        self.draft_session().map_or(0, unread)
    }

    fn catch_up(&mut self) -> Result<()> {
        if self.unread_tokens() > 1
            && let DraftSource::SeparateModel(draft) = &mut self.drafter
        {
            let batch = draft.batch();
            for tokens in self.read[draft.position()..].chunks(batch) {
                draft.forward(tokens)?;
            }
        }
        Ok(())
    }

    fn free_draft_positions(&self) -> usize {
        let free = |draft: &Session<B>| draft.limit().saturating_sub(self.read.len() + 1);
        self.draft_session().map_or(usize::MAX, free)
    }

    /// Drafts `length` tokens after `unread`; restores a session that drafts for itself.
    fn draft(
        &mut self,
        session: &mut Session<B>,
        unread: u32,
        length: usize,
        seen: &mut Option<ActivationRecorder>,
    ) -> Result<(), ExecError> {
        self.drafted.clear();
        if self.drafts.len() < length {
            self.drafts.resize_with(length, Distribution::default);
        }
        if length == 0 {
            return Ok(());
        }
        let start = session.position();
        let (own, mut behind) = match &mut self.drafter {
            DraftSource::SameModel { setting, adapted } => {
                let before = session.setting();
                session.set(*setting);
                session.adapt(adapted.take());
                (Some(before), vec![unread])
            }
            DraftSource::SeparateModel(draft) => {
                let mut behind = self.read[draft.position()..].to_vec();
                behind.push(unread);
                (None, behind)
            }
        };
        let drafting = match &mut self.drafter {
            DraftSource::SameModel { .. } => &mut *session,
            DraftSource::SeparateModel(draft) => draft,
        };
        let mut outcome = Ok(());
        for draft in &mut self.drafts[..length] {
            let step = draft_token(drafting, &mut self.sampler, &behind, draft, seen);
            match step {
                Ok(token) => {
                    self.drafted.push(token);
                    behind = vec![token];
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if let (Some(before), DraftSource::SameModel { adapted, .. }) = (own, &mut self.drafter) {
            *adapted = session.adapt(None);
            session.set(before);
            session.truncate(start)?;
        }
        outcome
    }

    fn record_round(&mut self, length: usize, accepted: usize, draft: Duration, verify: Duration) {
        self.pace.record_round(length, accepted, draft, verify);
        let done = &mut self.done;
        if length > 0 {
            done.rounds += 1;
            done.draft_time += draft;
        } else {
            done.without_draft += 1;
            done.without_draft_time += verify;
        }
        done.drafted += length as u64;
        done.accepted += accepted as u64;
        done.verify_time += verify;
    }

    fn apply_adaptation(
        &mut self,
        session: &mut Session<B>,
        length: usize,
    ) -> Result<(), ExecError> {
        let Some(adaptation) = self.adaptation.as_deref_mut().filter(|_| length > 0) else {
            return Ok(());
        };
        let new = match &mut self.drafter {
            DraftSource::SameModel { setting, .. } => {
                let before = session.setting();
                session.set(*setting);
                let new = adaptation.update_draft(session);
                session.set(before);
                new
            }
            DraftSource::SeparateModel(draft) => adaptation.update_draft(draft),
        };
        let Some(new) = new? else {
            return Ok(());
        };
        match &mut self.drafter {
            DraftSource::SameModel { adapted, .. } => *adapted = Some(new),
            DraftSource::SeparateModel(draft) => drop(draft.adapt(Some(new))),
        }
        Ok(())
    }
}

fn draft_token<B: Backend>(
    session: &mut Session<B>,
    sampler: &mut Sampler,
    tokens: &[u32],
    from: &mut Distribution,
    seen: &mut Option<ActivationRecorder>,
) -> Result<u32, ExecError> {
    if let Some(seen) = seen {
        let width = session.model().hyper().width;
        for batch in tokens.chunks(session.batch()) {
            session.forward_with(batch, seen.draft_tap())?;
        }
        seen.end_step(session, width)?;
        sampler.distribution(session.last_logits()?, from)?;
    } else {
        let logits = session.step_for(tokens, sampler.logits_for_distribution())?;
        sampler.distribution_from(logits, from)?;
    }
    Ok(sampler.draw_from(from))
}

#[cfg(test)]
mod tests;
