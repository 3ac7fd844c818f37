"""The data stages as Prefect tasks."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.data import prepare

collect_stand_ins = task(prepare.collect_stand_ins, task_run_name="collect stand-ins", cache_policy=NO_CACHE)
write_documents = task(prepare.write_missing_documents, task_run_name="read documents", cache_policy=NO_CACHE)
train_tokenizer = task(prepare.train_missing_tokenizer, task_run_name="train tokenizer ({vocab_size} entries)", cache_policy=NO_CACHE)
build_caches = task(prepare.build_missing_caches, task_run_name="build token caches", cache_policy=NO_CACHE)
write_benchmarks = task(prepare.write_missing_benchmarks, task_run_name="make benchmarks", cache_policy=NO_CACHE)
