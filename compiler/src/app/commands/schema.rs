//! `htc schema`.

use htc_loader::live::Event;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use super::{Failure, inspect, print_json, run, tokenize, verify};
use crate::analyse::record::Analysis;
use crate::app::cli::{Document, SchemaArgs};
use crate::bench::record;
use crate::export::ExportReport;
use crate::measure;
use crate::report::{Forecast, Report};

pub(super) fn execute(args: &SchemaArgs) -> Result<(), Failure> {
    print_json(&match args.document {
        Document::Analysis => schema_of::<Analysis>(),
        Document::Benchmark => schema_of::<record::Record>(),
        Document::Evaluation => schema_of::<measure::Record>(),
        Document::Event => schema_of::<Event>(),
        Document::Export => schema_of::<ExportReport>(),
        Document::Forecast => schema_of::<Forecast>(),
        Document::Inspection => schema_of::<inspect::Inspection<'_>>(),
        Document::Report => schema_of::<Report>(),
        Document::Run => schema_of::<run::Record>(),
        Document::Tokens => schema_of::<tokenize::Tokens>(),
        Document::Verification => schema_of::<verify::Outcome>(),
    })
}

/// Returns the JSON schema (draft 2020-12) of `T` as it is written.
fn schema_of<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    settings.into_generator().into_root_schema_for::<T>()
}
