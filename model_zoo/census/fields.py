"""Which columns the census has, in the order of its files: this file needs no framework."""

COLUMNS = (
    "age", "class_of_worker", "detailed_industry", "detailed_occupation", "education", "wage_per_hour", "enrolled_last_week",
    "marital_status", "major_industry", "major_occupation", "race", "hispanic_origin", "sex", "union_member", "unemployment_reason",
    "employment_status", "capital_gains", "capital_losses", "dividends", "tax_filer_status", "previous_region", "previous_state",
    "household_status", "household_summary", "instance_weight", "migration_msa", "migration_region", "migration_within_region",
    "same_house_last_year", "previous_sunbelt", "employer_size", "family_under_18", "father_birth_country", "mother_birth_country",
    "birth_country", "citizenship", "self_employed", "veterans_questionnaire", "veterans_benefits", "weeks_worked", "year", "income",
)  # fmt: skip
LABEL = "income"
WEIGHT = "instance_weight"
"""How many people a person of the sample stands for: left out, as the data's notes ask for."""
NUMBERS = (
    "age", "detailed_industry", "detailed_occupation", "wage_per_hour", "capital_gains", "capital_losses", "dividends", "employer_size",
    "self_employed", "veterans_benefits", "weeks_worked", "year",
)  # fmt: skip
"""Columns of integers; some are codes."""
MONEY = ("wage_per_hour", "capital_gains", "capital_losses", "dividends")
"""In cents and dollars: most are 0, few are large."""
CATEGORIES = tuple(name for name in COLUMNS if name not in (LABEL, WEIGHT, *MONEY))
"""Columns whose values are as good as names, ages and weeks included."""
FIELDS = len(CATEGORIES) + len(MONEY)
IDS = 1 << 15
