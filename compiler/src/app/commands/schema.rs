//! `htc schema`.

use htc_loader::live::Event;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use super::{Failure, Versioned, clean, inspect, print_value, run, tokenize, verify};
use crate::analyse::record::Analysis;
use crate::app::cli::{Document, SchemaArgs};
use crate::bench::record;
use crate::export::ExportReport;
use crate::measure;
use crate::report::{Forecast, Report};

pub(super) fn execute(args: &SchemaArgs) -> Result<(), Failure> {
    let mut schema = match args.document {
        Document::Analysis => schema_of::<Versioned<Analysis>>(),
        Document::Benchmark => schema_of::<Versioned<record::Record>>(),
        Document::Cleaning => schema_of::<Versioned<clean::Record>>(),
        Document::Evaluation => schema_of::<Versioned<measure::Record>>(),
        Document::Event => schema_of::<Event>(),
        Document::Export => schema_of::<Versioned<ExportReport>>(),
        Document::Forecast => schema_of::<Versioned<Forecast>>(),
        Document::Inspection => schema_of::<Versioned<inspect::Inspection<'_>>>(),
        Document::Report => schema_of::<Versioned<Report>>(),
        Document::Run => schema_of::<Versioned<run::Record>>(),
        Document::Tokens => schema_of::<Versioned<tokenize::Tokens>>(),
        Document::Verification => schema_of::<Versioned<verify::Outcome>>(),
    };
    schema.insert("title".to_owned(), args.document.schema_name().into());
    print_value(&schema)
}

/// Returns the JSON schema (draft 2020-12) of `T` as it is written.
fn schema_of<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    settings.into_generator().into_root_schema_for::<T>()
}
