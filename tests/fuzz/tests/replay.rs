//! The inputs that a fuzzer found worth keeping, once more: everything that it can reach is reached in a second.

use fipsee_fuzz::{TARGETS, corpus, one};

#[test]
fn no_input_of_the_corpus_makes_a_parser_do_what_it_must_not() {
    for target in TARGETS {
        let path = corpus::path(target.name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let inputs = corpus::unpack(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(inputs.len() >= 10, "{}: {} inputs are no corpus", target.name, inputs.len());
        inputs.iter().chain(&(target.seeds)()).for_each(|input| one(target, input));
        one(target, &[]);
    }
}
