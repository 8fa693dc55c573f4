//! Dead letter limits, job claims and maintenance statements.
