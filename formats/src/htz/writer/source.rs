//! Writer of source weights, tensor by tensor.

use super::{HtzError, HtzWriter};
use crate::htz::layout::MAX_SECTION_BYTES;
use crate::htz::{Digest, Record, SourceTensor};
use crate::model::Role;

impl HtzWriter {
    /// Returns the next unshared tensor of the source to write.
    pub fn next_source_tensor(&self) -> Option<&SourceTensor> {
        let tensors = self.manifest.source.iter().flat_map(|of| &of.tensors);
        let mut own = tensors.filter(|tensor| !tensor.shared);
        own.nth(self.next_source_tensor)
    }

    /// Writes the next unshared source tensor, after all tensors of the artifact.
    ///
    /// # Errors
    /// [`HtzError::OutOfOrder`], [`HtzError::Source`] for a wrong number of bytes, and I/O errors.
    pub fn write_source(&mut self, role: Role, bytes: &[u8]) -> Result<(), HtzError> {
        let wrong = |expected: String| HtzError::OutOfOrder {
            expected,
            found: format!("{role} of the source"),
        };
        if let Some(entry) = self.next_tensor() {
            return Err(wrong(entry.role.to_string()));
        }
        let length = match self.next_source_tensor() {
            Some(tensor) if tensor.role == role => tensor.entry().length,
            Some(tensor) => return Err(wrong(format!("{} of the source", tensor.role))),
            None => return Err(wrong("the end of the source's tensors".to_owned())),
        };
        if bytes.len() as u64 != length {
            return Err(HtzError::Source {
                fault: Box::new(Record::Tensor(role.to_string()).error(
                    "length",
                    length,
                    bytes.len(),
                )),
            });
        }
        self.write_sections()?;
        for part in bytes.chunks(MAX_SECTION_BYTES as usize) {
            let index = self.next_section;
            let Some(entry) = self.manifest.sections.get_mut(index) else {
                return Err(wrong("the end of the sections".to_owned()));
            };
            entry.sha256 = Digest::of_bytes(part);
            let offset = entry.offset;
            self.append(offset, part)?;
            self.next_section += 1;
        }
        self.next_source_tensor += 1;
        Ok(())
    }

    pub(super) fn finish_source(&mut self) -> Result<(), HtzError> {
        if let Some(tensor) = self.next_source_tensor() {
            return Err(HtzError::OutOfOrder {
                expected: format!("{} of the source", tensor.role),
                found: "the end of the tensors".to_owned(),
            });
        }
        self.write_sections()
    }

    fn write_sections(&mut self) -> Result<(), HtzError> {
        let sections = std::mem::take(&mut self.sections);
        let missing = sections.iter().enumerate().skip(self.next_section);
        let written = missing.map(|(index, section)| {
            let offset = self.manifest.sections[index].offset;
            self.append(offset, section.bytes())?;
            self.next_section += 1;
            Ok(())
        });
        let written = written.collect();
        self.sections = sections;
        written
    }
}
