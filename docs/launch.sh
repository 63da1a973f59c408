#!/bin/bash
#SBATCH --nodes=4 --gpus-per-node=8
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=16
MODEL_ARGS=(
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --swiglu
    --num-attention-heads 64 --group-query-attention --num-query-groups 8
    --seq-length 8192 --vocab-size 128256
)
srun torchrun --nproc_per_node 8 --nnodes ${SLURM_NNODES:-4} pretrain_gpt.py "${MODEL_ARGS[@]}" \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 256
