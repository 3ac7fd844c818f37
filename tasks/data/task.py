"""Data preparation as Prefect tasks."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from phasewise.tasks.data import prepare

collect_stand_ins = task(task_run_name="collect stand-ins", cache_policy=NO_CACHE)(prepare.collect_stand_ins)
write_documents = task(task_run_name="read documents", cache_policy=NO_CACHE)(prepare.write_missing_documents)
make_tokenizer = task(task_run_name="make tokenizer ({vocab_size} entries)", cache_policy=NO_CACHE)(prepare.make_missing_tokenizer)
build_caches = task(task_run_name="build token caches", cache_policy=NO_CACHE)(prepare.build_missing_caches)
